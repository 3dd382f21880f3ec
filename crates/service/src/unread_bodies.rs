//! What clients of HTTP/2 still send for a request that has its answer.
//!
//! A stream whose body nobody wants is reset, and a client that is still sending may then drop the answer with it, as curl 7.88 does. So the
//! rest is read and thrown away for a while. The answer is not kept back for that.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Incoming};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::limits::{UNREAD_BODIES_OF_CONNECTION_MAX, UNREAD_BODY_BYTES_MAX, UNREAD_BODY_TIME};

/// Takes the bodies of one connection that were dropped before their end.
///
/// It never holds more of them than the connection has streams.
#[derive(Clone, Debug)]
pub(crate) struct UnreadBodySender(mpsc::UnboundedSender<Incoming>);

impl UnreadBodySender {
    /// Has the rest of a body read. The connection may be over, and then nothing comes of it.
    pub(crate) fn send(&self, body: Incoming) {
        let _ = self.0.send(body);
    }
}

/// The bodies of one connection that nobody reads to their end.
pub(crate) struct UnreadBodies {
    received: mpsc::UnboundedReceiver<Incoming>,
    /// Those of all connections.
    places: Arc<Semaphore>,
}

impl UnreadBodies {
    /// For one connection; `places` are those of all.
    pub(crate) fn new(places: Arc<Semaphore>) -> (UnreadBodySender, Self) {
        let (sender, received) = mpsc::unbounded_channel();
        (UnreadBodySender(sender), Self { received, places })
    }

    /// Reads and throws away what comes, for as long as the connection lasts. A stream for which there is no place is reset.
    pub(crate) async fn discard_all(mut self) -> Infallible {
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                Some(body) = self.received.recv() => {
                    if running.len() < UNREAD_BODIES_OF_CONNECTION_MAX
                        && let Ok(place) = self.places.clone().try_acquire_owned()
                    {
                        running.spawn(discard_one(body, place, UNREAD_BODY_TIME));
                    }
                }
                Some(_) = running.join_next() => {}
                else => std::future::pending().await,
            }
        }
    }
}

async fn discard_one(body: Incoming, place: OwnedSemaphorePermit, time: Duration) {
    let _ = timeout(time, discard(body, UNREAD_BODY_BYTES_MAX)).await;
    drop(place);
}

/// Reads and throws away a body until it ends, breaks off, or has more than so many bytes.
pub(crate) async fn discard<B>(mut body: B, bytes_max: usize)
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut left = bytes_max;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(rest) = left.checked_sub(bytes) else {
            return;
        };
        left = rest;
    }
}
