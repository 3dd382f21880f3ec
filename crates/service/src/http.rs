//! HTTP/1.1 and HTTP/2 over a verified stream, in front of any tower service.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tower_layer::Layer as _;
use tower_service::Service;

use crate::access_log::{AccessClient, AccessEntry};
use crate::audit::subject;
use crate::body::{BoxError, RequestBody, ResponseBody};
use crate::connection_streams::ConnectionStreams;
use crate::head;
use crate::layer::IdentityLayer;
use crate::limits::{HEADERS_MAX_OF_PARSER, Limits, RETRY_AFTER_SECONDS};
use crate::one_answer::OneAnswer;
use crate::own_task::OwnTask;
use crate::peer::{Handler, Peer, Stranger, Stream, Visit};
use crate::request_slots::{NoSlot, Share};
use crate::unread_bodies::UnreadBodies;

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
        let service = OwnTask(IdentityLayer::new(peer.clone()).layer(self.0.clone()));
        serve_connection(stream, peer.visit(), &Asker::peer(&peer), service).await;
    }
}

/// What ALPN offers for HTTP.
pub(crate) const HTTP_PROTOCOLS: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Who asks on a connection.
#[derive(Clone)]
pub(crate) struct Asker {
    share: Arc<Share>,
    access: Arc<AccessClient>,
    /// The answer with which the connection is to end, for strangers.
    once: Option<Arc<OneAnswer>>,
}

impl Asker {
    pub(crate) fn peer(peer: &Peer) -> Self {
        let client = AccessClient::new(peer.address(), Some(&subject(peer.identity())), None);
        let slots = &peer.visit().state.request_slots;
        Self {
            share: slots.share_of(peer.identity()),
            access: Arc::new(client),
            once: None,
        }
    }

    /// Somebody whose connection ends with the first answer: strangers keep no places.
    pub(crate) fn stranger(stranger: &Stranger) -> Self {
        let address = stranger.visit.connection.address();
        let proven = stranger.identity().map(subject);
        let slots = &stranger.visit.state.request_slots;
        Self {
            share: slots.share_of_stranger(address.ip()),
            access: Arc::new(AccessClient::new(
                address,
                proven.as_deref(),
                stranger.claimed_subject(),
            )),
            once: Some(Arc::default()),
        }
    }

    /// Requests at once on a connection of HTTP/2.
    fn streams_max(&self, limits: &Limits) -> u32 {
        match self.once {
            Some(_) => 1,
            None => limits.streams_max,
        }
    }
}

/// Serves the requests of one connection until it ends or the server stops.
pub(crate) async fn serve_connection<S, B>(stream: Stream, visit: &Visit, asker: &Asker, service: S)
where
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let limits = visit.state.connections.limits();
    let head_bytes_max = head::parsed_bytes_max(limits);
    let io = TokioIo::new(stream);
    let (answering, asking) = (visit.clone(), asker.clone());
    let (unread, unread_bodies) = UnreadBodies::new(visit.state.unread_bodies.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let unread = (request.version() == Version::HTTP_2).then(|| unread.clone());
        let limits = answering.state.connections.limits();
        let request = request.map(|incoming| RequestBody::new(incoming, limits, unread));
        answer(request, answering.clone(), asking.clone(), service.clone())
    });
    let ending = async {
        match &asker.once {
            Some(once) => tokio::select! {
                () = visit.state.stopping() => {}
                () = once.asked(limits.header_time) => {}
            },
            None => visit.state.stopping().await,
        }
    };
    let result = if visit.protocol.as_deref() == Some(b"h2") {
        let (sender, streams) = ConnectionStreams::new();
        let mut builder = http2::Builder::new(sender);
        builder
            .timer(TokioTimer::new())
            // WebSockets over HTTP/2 (RFC 8441).
            .enable_connect_protocol()
            .max_concurrent_streams(asker.streams_max(limits))
            .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX));
        let mut connection = pin!(builder.serve_connection(io, service));
        let served = async {
            tokio::select! {
                biased;
                result = connection.as_mut() => result,
                () = ending => {
                    connection.as_mut().graceful_shutdown();
                    finish(connection, asker, limits).await
                }
            }
        };
        tokio::select! {
            biased;
            result = served => result,
            // What the connection reads meanwhile doesn't count against them: answers would wait for as long as a client sends.
            never = tokio::task::unconstrained(streams.run_all()) => match never {},
            never = unread_bodies.discard_all() => match never {},
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
            () = ending => {
                connection.as_mut().graceful_shutdown();
                finish(connection, asker, limits).await
            }
        }
    };
    if let Err(error) = result {
        // The parser has answered by itself, without the service.
        let status = if error.is_parse_too_large() {
            Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
        } else {
            error.is_parse().then_some(StatusCode::BAD_REQUEST)
        };
        if let Some(status) = status {
            let metrics = visit.state.connections.metrics();
            metrics.count_request(status.as_u16());
            let entry = AccessEntry::begin(&visit.state, &asker.access, None);
            if let Some(mut entry) = entry {
                entry.status = Some(status.as_u16());
            }
        }
        tracing::debug!(address = %visit.connection.address(), "connection ended: {error}");
    }
}

/// Serves what has begun on a connection that is to end. Clients of HTTP/2 say themselves when they have heard of that, so
/// strangers, who hold a place, are not asked for ever.
async fn finish<E>(
    connection: impl Future<Output = Result<(), E>>,
    asker: &Asker,
    limits: &Limits,
) -> Result<(), E> {
    let Some(once) = &asker.once else {
        return connection.await;
    };
    tokio::select! {
        biased;
        result = connection => result,
        () = once.over(limits.body_time) => Ok(()),
    }
}

/// Answers one request, or says that there is no slot for it.
async fn answer<S, B>(
    request: Request<RequestBody>,
    visit: Visit,
    asker: Asker,
    service: S,
) -> Result<Response<ResponseBody<B>>, Infallible>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Into<BoxError> + Send,
    B: Body<Data = Bytes> + Unpin,
{
    let working = visit.connection.run();
    let given = asker.once.as_ref().map(OneAnswer::begin);
    let is_last = given.is_some() && request.version() != Version::HTTP_2;
    let target = (request.method(), request.uri().path());
    let mut entry = AccessEntry::begin(&visit.state, &asker.access, Some(target));
    let mut response = answer_within_limits(request, &visit, &asker.share, service).await;
    if is_last {
        // Requests can stand behind the first already.
        let close = HeaderValue::from_static("close");
        response.headers_mut().insert(CONNECTION, close);
    }
    let status = response.status().as_u16();
    visit.state.connections.metrics().count_request(status);
    if let Some(entry) = &mut entry {
        entry.status = Some(status);
    }
    drop(working);
    Ok(response.map(|body| body.ending(entry, given)))
}

async fn answer_within_limits<S, B>(
    request: Request<RequestBody>,
    visit: &Visit,
    share: &Arc<Share>,
    mut service: S,
) -> Response<ResponseBody<B>>
where
    S: Service<Request<RequestBody>, Response = Response<B>>,
    S::Error: Into<BoxError> + Send,
    B: Body<Data = Bytes> + Unpin,
{
    let state = &visit.state;
    if let Err(fault) = head::check(&request, state.connections.limits()) {
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return plain(status, format!("{fault}\n"));
    }
    let slot = match state.request_slots.take(share).await {
        Ok(slot) => slot,
        Err(reason) => return overloaded(reason),
    };
    let answered = match poll_fn(|context| service.poll_ready(context)).await {
        Ok(()) => service.call(request).await,
        Err(error) => Err(error),
    };
    match answered {
        Ok(response) => response.map(|body| ResponseBody::inner(body, &visit.connection, slot)),
        Err(error) => {
            tracing::error!("the service failed: {}", error.into());
            plain(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the service failed; its log says why\n",
            )
        }
    }
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
