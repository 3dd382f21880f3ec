//! The body of a request on its way to the server behind, and how long an answer is awaited meanwhile.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, timeout_at};

use crate::body::{BodyError, RequestBody};

/// A request's body without its trailers: servers merge them into the head, after the front has looked at it.
#[derive(Debug)]
pub(super) struct Upload {
    body: RequestBody,
    turn: UploadTurn,
}

impl Upload {
    pub(super) fn new(body: RequestBody, turn: UploadTurn) -> Self {
        Self { body, turn }
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let polled = Pin::new(&mut self.body).poll_frame(context);
            self.turn.pass(polled.is_ready());
            match polled {
                Poll::Ready(Some(Ok(frame))) if frame.is_trailers() => {}
                other => return other,
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Whose turn it is: the client's, while the server behind waits for more of the body, or the server's, and since when.
#[derive(Clone, Debug)]
pub(super) struct UploadTurn(Arc<Mutex<Option<Instant>>>);

impl UploadTurn {
    /// The server's, from now on.
    pub(super) fn new() -> Self {
        Self(Arc::new(Mutex::new(Some(Instant::now()))))
    }

    fn pass(&self, to_server: bool) {
        let since = to_server.then(Instant::now);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    fn of_server_since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the server's answer, but no longer than `time` while it is the server's turn. A client that is slow
    /// with its body has limits of its own.
    pub(super) async fn wait<F: Future>(&self, time: Duration, answer: F) -> Option<F::Output> {
        let mut answer = pin!(answer);
        let mut end = Instant::now() + time;
        loop {
            if let Ok(answered) = timeout_at(end, &mut answer).await {
                return Some(answered);
            }
            let now = Instant::now();
            end = self.of_server_since().unwrap_or(now) + time;
            if end <= now {
                return None;
            }
        }
    }
}
