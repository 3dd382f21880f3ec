//! Bodies of HTTP messages, with an eye on clients that make us wait.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Instant, Sleep};

use crate::access_log::AccessEntry;
use crate::connections::{Connection, RunningRequest, Stall};
use crate::limits::Limits;
use crate::one_answer::GivenAnswer;
use crate::request_slots::RequestSlot;
use crate::unread_bodies::UnreadBodySender;

/// An error of a service, or of a body that it makes.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Why a request's body did not come.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The client let us wait for longer than the limits allow.
    #[error("the client sends its body too slowly, expected at least {0} bytes/s")]
    Slow(u32),
    /// The connection or the protocol.
    #[error(transparent)]
    Transport(#[from] hyper::Error),
}

/// The body of a request. The client has a budget of waiting time, which grows with the bytes it sends.
#[derive(Debug)]
pub struct RequestBody {
    /// There until this is dropped.
    incoming: Option<Incoming>,
    /// Who reads on if this is dropped before its end; nobody over HTTP/1.1, where a connection ends by such a body.
    unread: Option<UnreadBodySender>,
    budget: Duration,
    budget_max: Duration,
    bytes_per_second_min: u32,
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl RequestBody {
    pub(crate) fn new(
        incoming: Incoming,
        limits: &Limits,
        unread: Option<UnreadBodySender>,
    ) -> Self {
        Self {
            incoming: Some(incoming),
            unread,
            budget: limits.body_time,
            budget_max: limits.body_time,
            bytes_per_second_min: limits.body_bytes_per_second_min,
            waiting: None,
        }
    }

    fn came(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.budget = self.budget.saturating_sub(since.elapsed());
        }
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let earned = Duration::from_secs(bytes.into()) / self.bytes_per_second_min;
        self.budget = self.budget.saturating_add(earned).min(self.budget_max);
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let Some(incoming) = &mut self.incoming else {
            return Poll::Ready(None);
        };
        match Pin::new(incoming).poll_frame(context) {
            Poll::Ready(frame) => {
                if let Some(Ok(frame)) = &frame {
                    let bytes = frame.data_ref().map_or(0, Bytes::len);
                    self.came(bytes);
                }
                Poll::Ready(frame.map(|frame| frame.map_err(BodyError::from)))
            }
            Poll::Pending => {
                let budget = self.budget;
                let (_, sleep) = self
                    .waiting
                    .get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(budget))));
                match sleep.as_mut().poll(context) {
                    Poll::Ready(()) => {
                        let rate = self.bytes_per_second_min;
                        Poll::Ready(Some(Err(BodyError::Slow(rate))))
                    }
                    Poll::Pending => Poll::Pending,
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let incoming = self.incoming.as_ref();
        incoming.map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let (Some(incoming), Some(unread)) = (self.incoming.take(), &self.unread)
            && !incoming.is_end_stream()
        {
            unread.send(incoming);
        }
    }
}

/// The body of a response, whose bytes the access log counts.
#[derive(Debug)]
pub(crate) struct ResponseBody<B> {
    part: ResponsePart<B>,
    entry: Option<Box<AccessEntry>>,
    _given: Option<GivenAnswer>,
}

/// The service's body, or a line that the server itself says.
#[derive(Debug)]
enum ResponsePart<B> {
    Text(Option<Bytes>),
    Inner(Followed<B>),
}

/// A body that is watched from both sides: while the service makes it the client is not idle, and a client that
/// doesn't fetch what was made does not hold the service for ever.
#[derive(Debug)]
pub(crate) struct Followed<B> {
    body: B,
    connection: Arc<Connection>,
    stall: Option<Arc<Stall>>,
    running: Option<RunningRequest>,
    _slot: RequestSlot,
}

impl<B> ResponseBody<B> {
    pub(crate) fn text(text: impl Into<Bytes>) -> Self {
        Self {
            part: ResponsePart::Text(Some(text.into())),
            entry: None,
            _given: None,
        }
    }

    /// What ends with this body: a line of the access log, and the answer for which a stranger's connection is open.
    pub(crate) fn ending(
        self,
        entry: Option<Box<AccessEntry>>,
        given: Option<GivenAnswer>,
    ) -> Self {
        Self {
            entry,
            _given: given,
            ..self
        }
    }

    pub(crate) fn inner(body: B, connection: &Arc<Connection>, slot: RequestSlot) -> Self {
        Self {
            part: ResponsePart::Inner(Followed {
                body,
                connection: connection.clone(),
                stall: None,
                running: None,
                _slot: slot,
            }),
            entry: None,
            _given: None,
        }
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = self.get_mut();
        let polled = this.part.poll_frame(context);
        if let (Some(entry), Poll::Ready(Some(Ok(frame)))) = (&mut this.entry, &polled) {
            entry.bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        match &self.part {
            ResponsePart::Text(text) => text.is_none(),
            ResponsePart::Inner(followed) => followed.body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.part {
            ResponsePart::Text(text) => {
                SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64))
            }
            ResponsePart::Inner(followed) => followed.body.size_hint(),
        }
    }
}

impl<B> ResponsePart<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<BoxError>,
{
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let followed = match self {
            Self::Text(text) => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Inner(followed) => followed,
        };
        if let Some(stall) = &followed.stall {
            stall.finish();
        }
        match Pin::new(&mut followed.body).poll_frame(context) {
            Poll::Pending => {
                followed
                    .running
                    .get_or_insert_with(|| followed.connection.run());
                Poll::Pending
            }
            Poll::Ready(frame) => {
                followed.running = None;
                if frame.is_some() && !followed.body.is_end_stream() {
                    followed
                        .stall
                        .get_or_insert_with(|| followed.connection.stall())
                        .begin();
                }
                Poll::Ready(frame.map(|frame| frame.map_err(Into::into)))
            }
        }
    }
}
