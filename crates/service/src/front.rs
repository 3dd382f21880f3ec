//! A front for any HTTP server: it ends TLS, states in headers who asks, and passes everything else on.

mod headers;
mod paths;
mod rights;
mod unmet;
mod upload;
mod upstream;

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::header::{CONNECTION, EXPECT, RETRY_AFTER, SEC_WEBSOCKET_ACCEPT, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, BodyStream, Empty, Full, StreamBody};
use hyper::body::{Body as _, Frame, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tower_service::Service;

pub use headers::HeaderError;
pub(crate) use paths::METHODS;
pub use paths::{BadPathRule, PathError, PathRuleProblem, PathRules, PathTable};
pub use upstream::{BadUpstream, Upstream};

use crate::body::{BodyError, RequestBody};
use crate::head;
use crate::http::{Asker, HTTP_PROTOCOLS, serve_connection};
use crate::limits::{
    HELD_REFUSAL_BYTES_MAX, REFUSAL_TIME, REFUSED_BODY_BYTES_MAX, RETRY_AFTER_SECONDS,
};
use crate::peer::{Handler, Peer, Stranger, Strangers, Stream, Visit};
use crate::request_slots::{HeldPart, Share, Shares};
use crate::secret::FrontSecret;
use crate::server_state::ServerState;
use crate::unread_bodies::discard;
use headers::{IdentityHeaders, WebSocket};
use rights::Client;
use upload::{Upload, UploadTurn};
use upstream::UpstreamClient;

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
    /// What requests need, by path and method. Without rules every client that may connect may ask for everything.
    pub paths: PathRules,
    /// Whether somebody whom the policy refuses is told why by an answer of HTTP (403), and not by an alert of TLS alone.
    pub tell_refused: bool,
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
            paths: PathRules::default(),
            tell_refused: true,
            tunnels_max: 1024,
            tunnels_per_identity_max: 512,
        }
    }
}

/// The server behind is asked for a WebSocket by it, whatever the client's way to ask is.
const METHOD_OF_WEBSOCKET: Method = Method::GET;

/// The [`Handler`] that passes requests on to another HTTP server.
#[derive(Clone)]
pub struct Front(Arc<FrontState>);

struct FrontState {
    upstream: UpstreamClient,
    secret: Option<HeaderValue>,
    chain: bool,
    paths: PathRules,
    tell_refused: bool,
    response_time: Duration,
    tunnels: Arc<Semaphore>,
    shares: Shares,
}

impl Front {
    /// A front with these settings. The server behind need not run yet.
    pub fn new(settings: FrontSettings) -> Self {
        Self(Arc::new(FrontState {
            secret: settings.secret.as_ref().map(FrontSecret::header),
            upstream: upstream::client(settings.upstream, settings.upstream_idle_time),
            chain: settings.chain,
            paths: settings.paths,
            tell_refused: settings.tell_refused,
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

    fn strangers(&self) -> Strangers {
        Strangers {
            refused: self.0.tell_refused,
            without_certificate: self.0.paths.serve_anybody(),
        }
    }

    async fn handle(&self, stream: Stream, peer: Peer) {
        let share = self.0.shares.of(peer.identity());
        let asker = Asker::peer(&peer);
        let visit = peer.visit().clone();
        let client = Client::peer(&self.0, peer);
        self.serve(stream, &visit, &asker, client, Some(share))
            .await;
    }

    async fn handle_stranger(&self, stream: Stream, stranger: Stranger) {
        let asker = Asker::stranger(&stranger);
        let client = Client::stranger(&self.0, &stranger);
        self.serve(stream, &stranger.visit, &asker, client, None)
            .await;
    }
}

impl Front {
    async fn serve(
        &self,
        stream: Stream,
        visit: &Visit,
        asker: &Asker,
        client: Client,
        share: Option<Arc<Share>>,
    ) {
        // Each tunnel holds one of `tunnels_max` places, so there is a bound.
        let (tunnels, mut opened) = mpsc::unbounded_channel();
        let service = PassOn {
            front: self.0.clone(),
            client: Arc::new(client),
            share,
            state: visit.state.clone(),
            tunnels,
        };
        let mut served = pin!(serve_connection(stream, visit, asker, service));
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
    client: Arc<Client>,
    /// What the client has of the front's tunnels; a stranger gets none.
    share: Option<Arc<Share>>,
    state: Arc<ServerState>,
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
            let websocket = WebSocket::of(&request);
            // Before the decision: a change of the rules meanwhile is not missed.
            let wish = websocket.map(|websocket| TunnelWish {
                websocket,
                right: TunnelRight::new(&this, request.uri().path()),
            });
            let answer = match this.admit(&request, wish.is_some()).await {
                Ok(identity) => this.pass_on(request, wish, &identity).await,
                Err(fault) => {
                    let _ = tokio::time::timeout(REFUSAL_TIME, read_rest(request)).await;
                    Err(fault)
                }
            };
            Ok(answer.unwrap_or_else(FrontFault::answer))
        })
    }
}

/// Why a request got no answer from the server behind.
#[derive(Debug, thiserror::Error)]
enum FrontFault {
    #[error(transparent)]
    Request(#[from] HeaderError),
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("{0}")]
    Forbidden(String),
    #[error("a WebSocket needs a client certificate")]
    TunnelOfStranger,
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
            Self::Request(_) | Self::Path(_) | Self::Broken => StatusCode::BAD_REQUEST,
            Self::Forbidden(_) | Self::TunnelOfStranger => StatusCode::FORBIDDEN,
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

/// Reads the rest of a request that is refused. Closing on unread bytes would send a reset that overtakes the answer. Over HTTP/2 the
/// rest is read beside the answer, as for all bodies that nobody wants.
async fn read_rest(request: Request<RequestBody>) {
    // A client that asks first has sent nothing.
    if request.version() == Version::HTTP_2 || request.headers().contains_key(EXPECT) {
        return;
    }
    discard(request.into_body(), REFUSED_BODY_BYTES_MAX).await;
}

impl PassOn {
    async fn admit(
        &self,
        request: &Request<RequestBody>,
        is_for_websocket: bool,
    ) -> Result<Arc<IdentityHeaders>, FrontFault> {
        let method = match is_for_websocket {
            true => &METHOD_OF_WEBSOCKET,
            false => request.method(),
        };
        let path = request.uri().path();
        self.client.admit(&self.front, method, path).await
    }

    async fn pass_on(
        &self,
        mut request: Request<RequestBody>,
        wish: Option<TunnelWish>,
        identity: &IdentityHeaders,
    ) -> Result<FrontAnswer, FrontFault> {
        let (websocket, right) = wish.map(|wish| (wish.websocket, wish.right)).unzip();
        let place = match websocket {
            Some(_) => {
                let share = self.share.as_ref().ok_or(FrontFault::TunnelOfStranger)?;
                let part = share.take().ok_or(FrontFault::OwnTunnels)?;
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
        let by_path = !self.front.paths.is_empty();
        let is_uploading = head.version == Version::HTTP_2 && !body.is_end_stream();
        headers::prepare(&mut head, &body, identity, websocket.as_ref(), by_path)?;
        let turn = UploadTurn::new();
        let request = Request::from_parts(head, Upload::new(body, turn.clone()));
        let answer = self.front.upstream.request(request);
        let mut response = match turn.wait(self.front.response_time, answer).await {
            Some(Ok(response)) => response,
            Some(Err(error)) => return Err(fault(&error)),
            None => return Err(FrontFault::Silent),
        };
        if let Some(action) = headers::take_refused(response.headers_mut()) {
            self.client.refused_behind(&action).await;
        }
        if let Some(unmet) = headers::take_unmet(response.headers_mut()) {
            self.client.unmet_behind(&unmet).await;
        }
        let got = head::response_bytes(&response);
        let max = self.state.connections.limits().header_bytes_max;
        if got > max {
            tracing::warn!("the server behind sent a head of {got} bytes, expected at most {max}");
            return Err(FrontFault::Upstream);
        }
        let refuses = response.status().is_client_error() || response.status().is_server_error();
        let switched = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        let agreed = switched && headers::agrees_to_websocket(response.headers());
        let tunnel = match (agreed, client_side, right, place) {
            (true, Some(client), Some(right), Some(place)) => Some(Tunnel {
                client,
                upstream: hyper::upgrade::on(&mut response),
                right,
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
            _ if refuses && is_uploading => held(response).await,
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

/// A refusal with as much of its body as comes soon. Who still sends the request may end it once it has read the head, and what has not left
/// by then is lost.
async fn held(response: Response<Incoming>) -> FrontAnswer {
    let (head, mut body) = response.into_parts();
    let mut begun = Vec::new();
    let reading = async {
        let mut left = HELD_REFUSAL_BYTES_MAX;
        while let Some(frame) = body.frame().await {
            let bytes = frame
                .as_ref()
                .ok()
                .and_then(Frame::data_ref)
                .map_or(0, Bytes::len);
            begun.push(frame);
            left = left.saturating_sub(bytes);
            if left == 0 {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(REFUSAL_TIME, reading).await;
    let body = StreamBody::new(stream::iter(begun).chain(BodyStream::new(body)));
    let body = body.map_frame(headers::clean_trailers).boxed_unsync();
    Response::from_parts(head, body)
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
    right: TunnelRight,
    _place: (OwnedSemaphorePermit, HeldPart),
}

impl Tunnel {
    async fn run(self) {
        let Ok((client, upstream)) = tokio::try_join!(self.client, self.upstream) else {
            return;
        };
        let (mut client, mut upstream) = (TokioIo::new(client), TokioIo::new(upstream));
        let copied = tokio::io::copy_bidirectional(&mut client, &mut upstream);
        // Either side may break off at any time; nobody is left to be told.
        tokio::select! {
            _ = copied => {}
            () = self.right.lost() => {}
        }
    }
}

/// A request for a WebSocket.
struct TunnelWish {
    websocket: WebSocket,
    right: TunnelRight,
}

/// By what a WebSocket may be open. It outlasts the decision about its request, so that is made again when rules change.
struct TunnelRight {
    front: Arc<FrontState>,
    client: Arc<Client>,
    path: String,
    epochs: watch::Receiver<u64>,
}

impl TunnelRight {
    fn new(service: &PassOn, path: &str) -> Self {
        Self {
            front: service.front.clone(),
            client: service.client.clone(),
            path: path.to_owned(),
            epochs: service.state.epochs(),
        }
    }

    /// Waits until the rules no longer allow it.
    async fn lost(mut self) {
        while self.epochs.changed().await.is_ok() {
            let decided = self
                .client
                .admit(&self.front, &METHOD_OF_WEBSOCKET, &self.path);
            if decided.await.is_err() {
                return;
            }
        }
    }
}
