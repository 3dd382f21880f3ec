//! The streams of a connection of HTTP/2, which run in the connection's own task.
//!
//! So the head of an answer and the beginning of its body leave together: no other thread sends the head alone. A client that is refused
//! while it sends may end its request as soon as it has read the head, short of the length that it announced, as curl 7.88 does. That is an
//! error of the stream (RFC 9113 section 8.1.1), and what has not left by then is dropped.

use std::convert::Infallible;
use std::pin::Pin;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use tokio::sync::mpsc;

type StreamTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a connection puts its streams.
#[derive(Clone, Debug)]
pub(crate) struct StreamSender(mpsc::UnboundedSender<StreamTask>);

impl<F> Executor<F> for StreamSender
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, stream: F) {
        // The connection may be over, and its streams with it.
        let _ = self.0.send(Box::pin(stream));
    }
}

/// The streams of one connection.
pub(crate) struct ConnectionStreams(mpsc::UnboundedReceiver<StreamTask>);

impl ConnectionStreams {
    pub(crate) fn new() -> (StreamSender, Self) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (StreamSender(sender), Self(receiver))
    }

    /// Runs them for as long as the connection lasts, which says how many there may be.
    pub(crate) async fn run_all(mut self) -> Infallible {
        let mut running = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(stream) = self.0.recv() => running.push(stream),
                Some(()) = running.next() => {}
                else => std::future::pending().await,
            }
        }
    }
}
