//! A front for any HTTP server: it ends TLS, states in headers who asks, and passes everything else on.

mod headers;
mod upload;
mod upstream;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tower_service::Service;

pub use headers::HeaderError;
pub use upstream::{BadUpstream, Upstream};

use crate::body::{BodyError, RequestBody};
use crate::head;
use crate::http::{HTTP_PROTOCOLS, serve_connection};
use crate::limits::RETRY_AFTER_SECONDS;
use crate::peer::{Handler, Peer, Stream};
use crate::request_slots::{HeldPart, Share, Shares};
use crate::secret::FrontSecret;
use headers::{IdentityHeaders, WebSocket};
use upload::{Upload, UploadTurn};
use upstream::Client;

/// How a front treats the server behind it.
#[derive(Clone, Debug)]
pub struct FrontSettings {
    /// Where the server behind listens.
    pub upstream: Upstream,
    /// What both sides know. A server on a TCP port needs it, since any process of the host can reach that port.
    pub secret: Option<FrontSecret>,
    /// Whether `Client-Cert-Chain` is sent: it has the size of the chain, which can pass a server's limit.
    pub chain: bool,
    /// How long the server behind may take to begin its answer. The time in which it waits for the client's body does not
    /// count.
    pub response_time: Duration,
    /// How long an idle connection to the server behind is kept: less than that server keeps it, or requests meet
    /// its end.
    pub upstream_idle_time: Duration,
    /// WebSockets at once, over all connections.
    pub tunnels_max: usize,
    /// WebSockets at once of one identity: the end entity's, whatever proxies it uses.
    pub tunnels_per_identity_max: usize,
}

impl FrontSettings {
    /// For this server behind, without a secret, with default limits.
    pub fn new(upstream: Upstream) -> Self {
        Self {
            upstream,
            secret: None,
            chain: false,
            response_time: Duration::from_secs(60),
            upstream_idle_time: Duration::from_secs(4),
            tunnels_max: 1024,
            tunnels_per_identity_max: 512,
        }
    }
}

/// The [`Handler`] that passes requests on to another HTTP server.
#[derive(Clone)]
pub struct Front(Arc<FrontState>);

struct FrontState {
    client: Client,
    secret: Option<HeaderValue>,
    chain: bool,
    response_time: Duration,
    tunnels: Arc<Semaphore>,
    shares: Shares,
}

impl Front {
    /// A front with these settings. The server behind need not run yet.
    pub fn new(settings: FrontSettings) -> Self {
        Self(Arc::new(FrontState {
            secret: settings.secret.as_ref().map(FrontSecret::header),
            client: upstream::client(settings.upstream, settings.upstream_idle_time),
            chain: settings.chain,
            response_time: settings.response_time,
            shares: Shares::new(settings.tunnels_per_identity_max),
            tunnels: Arc::new(Semaphore::new(
                settings.tunnels_max.min(Semaphore::MAX_PERMITS),
            )),
        }))
    }
}

impl std::fmt::Debug for Front {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Front").finish_non_exhaustive()
    }
}

impl Handler for Front {
    const PROTOCOLS: &'static [&'static [u8]] = HTTP_PROTOCOLS;

    async fn handle(&self, stream: Stream, peer: Peer) {
        // Each tunnel holds one of `tunnels_max` places, so there is a bound.
        let (tunnels, mut opened) = mpsc::unbounded_channel();
        let service = PassOn {
            front: self.0.clone(),
            headers: Arc::new(IdentityHeaders::new(
                &peer,
                self.0.secret.clone(),
                self.0.chain,
            )),
            share: self.0.shares.of(peer.identity()),
            head_bytes_max: peer.state().connections.limits().header_bytes_max,
            tunnels,
        };
        let mut served = pin!(serve_connection(stream, &peer, service));
        // They end with the connection: dropping the set stops them.
        let mut running = JoinSet::new();
        loop {
            tokio::select! {
                () = &mut served => break,
                Some(tunnel) = opened.recv() => {
                    running.spawn(tunnel.run());
                }
                Some(_) = running.join_next() => {}
            }
        }
        // A connection of HTTP/1.1 has now become its tunnel; those of HTTP/2 have lost their client.
        while let Ok(tunnel) = opened.try_recv() {
            running.spawn(tunnel.run());
        }
        while running.join_next().await.is_some() {}
    }
}

/// A body on its way back to the client.
type FrontAnswer = Response<UnsyncBoxBody<Bytes, hyper::Error>>;

/// The service for the requests of one connection.
#[derive(Clone)]
struct PassOn {
    front: Arc<FrontState>,
    headers: Arc<IdentityHeaders>,
    /// What the client has of the front's tunnels.
    share: Arc<Share>,
    /// Bytes of the head of an answer.
    head_bytes_max: usize,
    tunnels: mpsc::UnboundedSender<Tunnel>,
}

impl Service<Request<RequestBody>> for PassOn {
    type Response = FrontAnswer;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<FrontAnswer, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            Ok(this
                .pass_on(request)
                .await
                .unwrap_or_else(FrontFault::answer))
        })
    }
}

/// Why a request got no answer from the server behind.
#[derive(Debug, thiserror::Error)]
enum FrontFault {
    #[error(transparent)]
    Request(#[from] HeaderError),
    #[error("the request's body came too slowly")]
    Slow,
    #[error("the request's body is malformed, or broke off")]
    Broken,
    #[error("too many WebSockets at once: try again later")]
    Tunnels,
    #[error("too many WebSockets of yours at once: close some of them")]
    OwnTunnels,
    #[error("the server behind can't be reached, or broke off")]
    Upstream,
    #[error("the server behind did not answer in time")]
    Silent,
}

impl FrontFault {
    fn answer(self) -> FrontAnswer {
        let status = match self {
            Self::Request(HeaderError::Method) => StatusCode::METHOD_NOT_ALLOWED,
            Self::Request(_) | Self::Broken => StatusCode::BAD_REQUEST,
            Self::Slow => StatusCode::REQUEST_TIMEOUT,
            Self::Tunnels => StatusCode::SERVICE_UNAVAILABLE,
            Self::OwnTunnels => StatusCode::TOO_MANY_REQUESTS,
            Self::Upstream => StatusCode::BAD_GATEWAY,
            Self::Silent => StatusCode::GATEWAY_TIMEOUT,
        };
        let text = Full::new(Bytes::from(format!("{self}\n")));
        let mut response = Response::new(text.map_err(|never| match never {}).boxed_unsync());
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("text/plain; charset=utf-8"),
        );
        if matches!(self, Self::Tunnels | Self::OwnTunnels) {
            headers.insert(RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
        }
        response
    }
}

impl PassOn {
    async fn pass_on(&self, mut request: Request<RequestBody>) -> Result<FrontAnswer, FrontFault> {
        let websocket = WebSocket::of(&request);
        let place = match websocket {
            Some(_) => {
                let part = self.share.take().ok_or(FrontFault::OwnTunnels)?;
                let tunnels = self.front.tunnels.clone();
                let place = tunnels
                    .try_acquire_owned()
                    .map_err(|_| FrontFault::Tunnels)?;
                Some((place, part))
            }
            None => None,
        };
        let client_side = websocket
            .is_some()
            .then(|| hyper::upgrade::on(&mut request));
        let (mut head, body) = request.into_parts();
        head.extensions.clear();
        headers::prepare(&mut head, &body, &self.headers, websocket.as_ref())?;
        let turn = UploadTurn::new();
        let request = Request::from_parts(head, Upload::new(body, turn.clone()));
        let answer = self.front.client.request(request);
        let mut response = match turn.wait(self.front.response_time, answer).await {
            Some(Ok(response)) => response,
            Some(Err(error)) => return Err(fault(&error)),
            None => return Err(FrontFault::Silent),
        };
        let got = head::response_bytes(&response);
        if got > self.head_bytes_max {
            let max = self.head_bytes_max;
            tracing::warn!("the server behind sent a head of {got} bytes, expected at most {max}");
            return Err(FrontFault::Upstream);
        }
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let agreed = switched && headers::agrees_to_websocket(response.headers());
        let tunnel = match (agreed, client_side, place) {
            (true, Some(client), Some(place)) => Some(Tunnel {
                client,
                upstream: hyper::upgrade::on(&mut response),
                _place: place,
            }),
            _ if switched => {
                tracing::warn!(
                    "the server behind switched to a protocol that it was not asked for"
                );
                return Err(FrontFault::Upstream);
            }
            _ => None,
        };
        headers::clean_response(response.headers_mut(), switched);
        let answer = match websocket {
            Some(WebSocket::Connect { accept, .. }) => connected(response, &accept)?,
            _ => response.map(passed_back),
        };
        if let Some(tunnel) = tunnel {
            // The receiver lives as long as the connection.
            let _ = self.tunnels.send(tunnel);
        }
        Ok(answer)
    }
}

/// The answer to an extended CONNECT: success is 200 there, and means that the stream is the WebSocket (RFC 8441 section
/// 5). A success of any other kind would make a tunnel of what was none.
fn connected(
    response: Response<Incoming>,
    accept: &HeaderValue,
) -> Result<FrontAnswer, FrontFault> {
    let (mut head, body) = response.into_parts();
    if head.status != StatusCode::SWITCHING_PROTOCOLS {
        if head.status.is_success() {
            tracing::warn!("the server behind was asked for a WebSocket and sent a page");
            return Err(FrontFault::Upstream);
        }
        return Ok(Response::from_parts(head, passed_back(body)));
    }
    if head.headers.remove(SEC_WEBSOCKET_ACCEPT).as_ref() != Some(accept) {
        tracing::warn!("the server behind answered for another WebSocket than was asked for");
        return Err(FrontFault::Upstream);
    }
    head.headers.remove(CONNECTION);
    head.headers.remove(UPGRADE);
    head.status = StatusCode::OK;
    head.version = Version::HTTP_2;
    let empty = Empty::new().map_err(|never| match never {});
    Ok(Response::from_parts(head, empty.boxed_unsync()))
}

/// The body of an answer, without what its trailers must not say.
fn passed_back(body: Incoming) -> UnsyncBoxBody<Bytes, hyper::Error> {
    body.map_frame(headers::clean_trailers).boxed_unsync()
}

fn fault(error: &hyper_util::client::legacy::Error) -> FrontFault {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        match cause.downcast_ref() {
            Some(BodyError::Slow(_)) => return FrontFault::Slow,
            Some(BodyError::Transport(_)) => return FrontFault::Broken,
            None => {}
        }
        source = cause.source();
    }
    tracing::warn!("the server behind failed: {}", Causes(error));
    FrontFault::Upstream
}

/// An error with what is behind it.
struct Causes<'a>(&'a (dyn std::error::Error + 'static));

impl std::fmt::Display for Causes<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0)?;
        let mut source = self.0.source();
        while let Some(cause) = source {
            write!(formatter, ": {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

/// A connection that speaks something else than HTTP from now on.
struct Tunnel {
    client: OnUpgrade,
    upstream: OnUpgrade,
    _place: (OwnedSemaphorePermit, HeldPart),
}

impl Tunnel {
    async fn run(self) {
        let Ok((client, upstream)) = tokio::try_join!(self.client, self.upstream) else {
            return;
        };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        // Either side may break off at any time; nobody is left to be told.
        let _ = tokio::io::copy_bidirectional(&mut client, &mut upstream).await;
    }
}
