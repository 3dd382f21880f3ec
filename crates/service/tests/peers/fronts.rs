//! Fronts, and clients that ask them.

use bytes::Bytes;
use exoskel_service::{Front, FrontSettings, Settings, Upstream};
use http::{HeaderMap, Request, Response};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::behind::{Behind, Body, text};
use super::{Card, Running, Scratch};

pub async fn hello(_request: Request<Incoming>) -> Response<Body> {
    Response::new(text("hello"))
}

pub fn front_of(
    scratch: Scratch,
    change: impl FnOnce(&mut FrontSettings),
    limits: impl FnOnce(&mut Settings),
) -> Running {
    let mut settings = FrontSettings::new(Upstream::Unix(scratch.path().join("app.sock")));
    change(&mut settings);
    Running::start_in(scratch, Front::new(settings), limits)
}

/// A front with default settings before a server that answers so, and a client's card.
pub fn before<F, R>(answer: F) -> (Behind, Running, Card)
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
    R: Future<Output = Response<Body>> + Send,
{
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, answer);
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    (behind, server, card)
}

/// An HTTP/2 connection, and the task that drives it.
pub async fn http2_client(
    server: &Running,
    card: &Card,
) -> (http2::SendRequest<Body>, JoinHandle<hyper::Result<()>>) {
    let stream = server.connect_as(card, &[b"h2"]).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
        .await
        .unwrap();
    (sender, tokio::spawn(connection))
}

pub fn values<'a>(head: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let values = head.get_all(name).into_iter();
    values.map(|value| value.to_str().unwrap()).collect()
}

/// A body that is what comes through a channel.
pub struct Parts(pub mpsc::Receiver<Bytes>);

impl hyper::body::Body for Parts {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.0
            .poll_recv(context)
            .map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}
