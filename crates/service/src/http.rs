//! HTTP/1.1 and HTTP/2 over a verified stream, in front of any tower service.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tower_layer::Layer as _;
use tower_service::Service;

use crate::body::{BoxError, RequestBody, ResponseBody};
use crate::head;
use crate::layer::IdentityLayer;
use crate::limits::{HEADERS_MAX_OF_PARSER, RETRY_AFTER_SECONDS};
use crate::peer::{Handler, Peer, Stream};
use crate::request_slots::{NoSlot, Share};

/// Serves HTTP to clients whose identity is proven: a [`Handler`] around a tower service such as an axum router.
///
/// Every request carries the client's [`VerifiedIdentity`](exoskel_identity::VerifiedIdentity) and [`Peer`] in its
/// extensions. The verdict is that of the connection, however many requests follow.
#[derive(Clone, Debug)]
pub struct Http<S>(S);

impl<S> Http<S> {
    /// Serves with clones of `service`, one for each request.
    pub fn new(service: S) -> Self {
        Self(service)
    }
}

impl<S, B> Handler for Http<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    const PROTOCOLS: &'static [&'static [u8]] = HTTP_PROTOCOLS;

    async fn handle(&self, stream: Stream, peer: Peer) {
        let service = IdentityLayer::new(peer.clone()).layer(self.0.clone());
        serve_connection(stream, &peer, service).await;
    }
}

/// What ALPN offers for HTTP.
pub(crate) const HTTP_PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Serves the requests of one connection until it ends or the server stops.
pub(crate) async fn serve_connection<S, B>(stream: Stream, peer: &Peer, service: S)
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let limits = peer.state().connections.limits();
    let head_bytes_max = head::parsed_bytes_max(limits);
    let io = TokioIo::new(stream);
    let answering = peer.clone();
    let share = peer.state().request_slots.share_of(peer.identity());
    let service = service_fn(move |request| {
        answer(request, answering.clone(), share.clone(), service.clone())
    });
    let result = if peer.protocol() == Some(b"h2") {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            // WebSockets over HTTP/2 (RFC 8441).
            .enable_connect_protocol()
            .max_concurrent_streams(limits.streams_max)
            .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX));
        let mut connection = pin!(builder.serve_connection(io, service));
        tokio::select! {
            biased;
            result = connection.as_mut() => result,
            () = peer.stopping() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_time)
            .max_buf_size(head_bytes_max)
            .max_header_size(head_bytes_max);
        if limits.headers_max != HEADERS_MAX_OF_PARSER {
            builder.max_headers(limits.headers_max);
        }
        let mut connection = pin!(builder.serve_connection(io, service).with_upgrades());
        tokio::select! {
            biased;
            result = connection.as_mut() => result,
            () = peer.stopping() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = result {
        // The parser has answered by itself, without the service.
        let metrics = peer.state().connections.metrics();
        if error.is_parse_too_large() {
            metrics.count_request(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE.as_u16());
        } else if error.is_parse() {
            metrics.count_request(StatusCode::BAD_REQUEST.as_u16());
        }
        tracing::debug!(address = %peer.address(), "connection ended: {error}");
    }
}

/// Answers one request, or says that there is no slot for it.
async fn answer<S, B>(
    request: Request<Incoming>,
    peer: Peer,
    share: Arc<Share>,
    mut service: S,
) -> Result<Response<ResponseBody<B>>, Infallible>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Into<BoxError> + Send,
    B: Body<Data = Bytes> + Unpin,
{
    let working = peer.connection().run();
    let state = Arc::clone(peer.state());
    let metrics = state.connections.metrics();
    if let Err(fault) = head::check(&request, state.connections.limits()) {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        metrics.count_request(status.as_u16());
        return Ok(plain(status, format!("{fault}\n")));
    }
    let slot = match state.request_slots.take(&share).await {
        Ok(slot) => slot,
        Err(reason) => {
            let response = overloaded(reason);
            metrics.count_request(response.status().as_u16());
            return Ok(response);
        }
    };
    let request = request.map(|incoming| RequestBody::new(incoming, state.connections.limits()));
    let answered = match poll_fn(|context| service.poll_ready(context)).await {
        Ok(()) => service.call(request).await,
        Err(error) => Err(error),
    };
    let response = match answered {
        Ok(response) => response.map(|body| ResponseBody::inner(body, peer.connection(), slot)),
        Err(error) => {
            tracing::error!("the service failed: {}", error.into());
            plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the service failed; its log says why\n",
            )
        }
    };
    metrics.count_request(response.status().as_u16());
    drop(working);
    Ok(response)
}

fn overloaded<B>(reason: NoSlot) -> Response<ResponseBody<B>> {
    let (status, text) = match reason {
        NoSlot::OfAll => (
            StatusCode::SERVICE_UNAVAILABLE,
            "too many requests at once: try again later\n",
        ),
        NoSlot::OfThisIdentity => (
            StatusCode::TOO_MANY_REQUESTS,
            "too many requests of yours at once: wait for the answers to some of them\n",
        ),
    };
    let mut response = plain(status, text);
    response
        .headers_mut()
        .insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
    response
}

/// An answer of the server's own.
pub(crate) fn plain<B>(status: StatusCode, text: impl Into<Bytes>) -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::text(text));
    *response.status_mut() = status;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}
