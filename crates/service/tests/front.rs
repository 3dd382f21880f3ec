//! The front through real HTTP: what the server behind gets to see, what passes, and what happens when it can't answer.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::convert::Infallible;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use exoskel_service::{End, Front, FrontSecret, FrontSettings, Settings, Upstream};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use peers::{Card, HeldTime, Running, Scratch};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::advance;

type Body = UnsyncBoxBody<Bytes, hyper::Error>;

fn text(text: &str) -> Body {
    Full::new(Bytes::copy_from_slice(text.as_bytes()))
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

/// A server behind the front, which keeps the heads that it got.
struct Behind {
    seen: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    task: JoinHandle<()>,
}

impl Behind {
    fn start<F, R>(scratch: &Scratch, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Response<Body>> + Send,
    {
        let listener = UnixListener::bind(scratch.path().join("app.sock")).unwrap();
        let seen: Arc<Mutex<Vec<(String, HeaderMap)>>> = Arc::default();
        let kept = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (answer, kept) = (answer.clone(), kept.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let head = (request.uri().to_string(), request.headers().clone());
                    kept.lock().unwrap().push(head);
                    let answer = answer.clone();
                    async move { Ok::<_, Infallible>(answer(request).await) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(socket), service)
                        .with_upgrades(),
                );
            }
        });
        Self { seen, task }
    }

    fn heads(&self) -> Vec<(String, HeaderMap)> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn hello(_request: Request<Incoming>) -> Response<Body> {
    Response::new(text("hello"))
}

fn front_of(
    scratch: Scratch,
    change: impl FnOnce(&mut FrontSettings),
    limits: impl FnOnce(&mut Settings),
) -> Running {
    let mut settings = FrontSettings::new(Upstream::Unix(scratch.path().join("app.sock")));
    change(&mut settings);
    Running::start_in(scratch, Front::new(settings), limits)
}

/// Sends bytes as they are, and reads until the connection ends.
async fn raw(server: &Running, card: &Card, request: &[u8]) -> String {
    let mut stream = server.connect_as(card, &[b"http/1.1"]).await.unwrap();
    stream.write_all(request).await.unwrap();
    let mut answer = Vec::new();
    // Some servers say goodbye, some just go.
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

fn values<'a>(head: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let values = head.get_all(name).into_iter();
    values.map(|value| value.to_str().unwrap()).collect()
}

#[tokio::test]
async fn only_the_front_states_who_asks() {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, hello);
    let file = scratch.path().join("secret");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(FrontSecret::read(&file).is_err(), "others could read it");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let secret = FrontSecret::read(&file).unwrap();
    let known = secret.clone();
    let server = front_of(
        scratch,
        |settings| {
            settings.secret = Some(secret);
            settings.chain = true;
        },
        |_| (),
    );
    let card = server.authority.user("ada");
    let answer = raw(
        &server,
        &card,
        b"GET /path?query HTTP/1.1\r\n\
          Host: service.example.org\r\n\
          Exoskel-Subject: \"/CN=root\"\r\n\
          exoskel_subject: \"/CN=root\"\r\n\
          EXOSKEL.FQAN: \"/vo/Role=admin\"\r\n\
          Exoskel-Vo: \"vo\"\r\n\
          Exoskel-Front-Secret: guessed\r\n\
          Client-Cert: :AAAA:\r\n\
          client_cert_chain: :AAAA:\r\n\
          X-Forwarded-For: 192.0.2.1\r\n\
          X_Forwarded_For: 192.0.2.1\r\n\
          X-Forwarded-Proto: http\r\n\
          Forwarded: for=192.0.2.1\r\n\
          X-Of-This-Hop: 1\r\n\
          X-Kept: 1\r\n\
          TE: trailers\r\n\
          Upgrade: h2c\r\n\
          HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\
          Proxy-Authorization: Basic AAAA\r\n\
          Keep-Alive: timeout=5\r\n\
          Connection: close, x-of-this-hop, exoskel-subject, client-cert, upgrade\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(answer.ends_with("hello"), "{answer}");
    let heads = behind.heads();
    let [(target, head)] = heads.as_slice() else {
        panic!("{heads:?}")
    };
    assert_eq!(target, "/path?query");
    assert_eq!(values(head, "host"), ["service.example.org"]);
    let [subject] = values(head, "exoskel-subject")[..] else {
        panic!("{head:?}")
    };
    assert!(subject.contains("CN=ada"), "{subject}");
    let [sent] = values(head, "exoskel-front-secret")[..] else {
        panic!("{head:?}")
    };
    assert!(known.matches(sent.as_bytes()));
    assert!(!known.matches(b"0123456789abcdef0123456789abcdeF"));
    let encoded = data_encoding::BASE64.encode(&card.chain[0]);
    assert_eq!(values(head, "client-cert"), [format!(":{encoded}:")]);
    assert_eq!(values(head, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(values(head, "x-forwarded-proto"), ["https"]);
    assert_eq!(values(head, "x-forwarded-host"), ["service.example.org"]);
    assert_eq!(values(head, "x-kept"), ["1"]);
    let mut names: Vec<&str> = head.keys().map(|name| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "client-cert",
            "exoskel-front-secret",
            "exoskel-subject",
            "host",
            "http2-settings",
            "x-forwarded-for",
            "x-forwarded-host",
            "x-forwarded-proto",
            "x-kept",
        ]
    );
    server.stop().await;
}

#[tokio::test]
async fn a_request_can_not_hide_in_another_one() {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, |request: Request<Incoming>| async {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(text(&body.len().to_string()))
    });
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let refused: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a b\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\nConnection: close\r\n\r\n",
    ];
    for request in refused {
        let answer = raw(&server, &card, request).await;
        assert!(answer.starts_with("HTTP/1.1 40"), "{answer:?}");
    }
    assert!(behind.heads().is_empty());
    // What follows the last chunk is a request of its own, to the front and to the server behind.
    let answer = raw(
        &server,
        &card,
        b"POST /first HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n\
          3\r\nabc\r\n0\r\nExoskel-Subject: \"/CN=root\"\r\n\r\n\
          GET /second HTTP/1.1\r\nHost: a\r\nExoskel-Subject: \"/CN=root\"\r\nConnection: close\r\n\r\n",
    )
    .await;
    let heads = behind.heads();
    let targets: Vec<&str> = heads.iter().map(|(target, _)| target.as_str()).collect();
    assert_eq!(targets[0], "/first", "{answer}");
    for (_, head) in &heads {
        assert!(values(head, "exoskel-subject")[0].contains("CN=ada"));
        assert_eq!(values(head, "exoskel-subject").len(), 1);
        assert!(
            values(head, "content-length").len() + values(head, "transfer-encoding").len() <= 1
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn bodies_stream_both_ways_over_http_2() {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, |request: Request<Incoming>| async {
        Response::new(request.into_body().boxed_unsync())
    });
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let stream = server.connect_as(&card, &[b"h2"]).await.unwrap();
    let (mut sender, connection) =
        http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let driver = tokio::spawn(connection);
    let (parts, received) = mpsc::channel::<Bytes>(1);
    let body = Parts(received).boxed_unsync();
    let request = Request::post("https://service.example.org/echo")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(body)
        .unwrap();
    let answered = sender.send_request(request);
    parts.send(Bytes::from_static(b"one")).await.unwrap();
    let mut response = answered.await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    // Each part comes back before the next one is sent.
    for part in ["one", "two", "three"] {
        if part != "one" {
            parts
                .send(Bytes::copy_from_slice(part.as_bytes()))
                .await
                .unwrap();
        }
        let mut got = Vec::new();
        while got.len() < part.len() {
            let frame = response.frame().await.unwrap().unwrap();
            got.extend_from_slice(&frame.into_data().unwrap());
        }
        assert_eq!(got, part.as_bytes());
    }
    drop(parts);
    while let Some(frame) = response.frame().await {
        assert_eq!(
            frame.unwrap().into_data().unwrap(),
            "",
            "nothing more was sent"
        );
    }
    let heads = behind.heads();
    assert_eq!(values(&heads[0].1, "cookie"), ["a=1; b=2"]);
    assert_eq!(values(&heads[0].1, "host"), ["service.example.org"]);
    drop(sender);
    driver.await.unwrap().unwrap();
    server.stop().await;
}

/// A body that is what comes through a channel.
struct Parts(mpsc::Receiver<Bytes>);

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

/// A body without an end.
struct Endless;

impl hyper::body::Body for Endless {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let part = Bytes::from_static(&[0; 16 * 1024]);
        std::task::Poll::Ready(Some(Ok(Frame::data(part))))
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_fetch_its_answer_holds_nothing() {
    let _held = HeldTime::new();
    let scratch = Scratch::new();
    let _behind = Behind::start(&scratch, |_request| async {
        Response::new(Endless.boxed_unsync())
    });
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let stream = server.connect_as(&card, &[b"h2"]).await.unwrap();
    let (mut sender, connection) =
        http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let driver = tokio::spawn(connection);
    let request = Request::get("https://a/").body(text("")).unwrap();
    // The connection is read all the time; only this answer's window stays shut.
    let response = sender.send_request(request).await.unwrap();
    while server.handle.metrics().ended(End::Slow) == 0 {
        advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    let _ = driver.await.unwrap();
    drop(response);
    server.stop().await;
}

/// Answers an upgrade and sends back what comes through it.
async fn websocket(mut request: Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut tunnel = TokioIo::new(upgrade.await.unwrap());
        let mut buffer = [0; 64];
        while let Ok(count @ 1..) = tunnel.read(&mut buffer).await {
            if tunnel.write_all(&buffer[..count]).await.is_err() {
                break;
            }
        }
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-accept", "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")
        .body(text(""))
        .unwrap()
}

const UPGRADE: &[u8] =
    b"GET /chat HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: WebSocket\r\n\
    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";

async fn head_of(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn a_websocket_passes_until_its_owner_is_revoked() {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, websocket);
    let server = front_of(scratch, |settings| settings.tunnels_max = 1, |_| ());
    let card = server.authority.user("ada");
    let mut stream = server.connect_as(&card, &[b"http/1.1"]).await.unwrap();
    stream.write_all(UPGRADE).await.unwrap();
    let head = head_of(&mut stream).await.to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("upgrade: websocket"), "{head}");
    assert!(head.contains("sec-websocket-accept"), "{head}");
    for word in ["ping", "pong"] {
        stream.write_all(word.as_bytes()).await.unwrap();
        let mut echo = [0; 4];
        stream.read_exact(&mut echo).await.unwrap();
        assert_eq!(&echo, word.as_bytes());
    }
    assert!(values(&behind.heads()[0].1, "exoskel-subject")[0].contains("CN=ada"));
    let mut other = server.connect_as(&card, &[b"http/1.1"]).await.unwrap();
    other.write_all(UPGRADE).await.unwrap();
    let second = head_of(&mut other).await;
    drop(other);
    assert!(second.starts_with("HTTP/1.1 503"), "{second}");
    assert!(
        second.to_ascii_lowercase().contains("retry-after"),
        "{second}"
    );
    server.authority.revoke(&card);
    server.handle.renew().await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    assert!(server.handle.metrics().ended(End::NoLongerGood) >= 1);
    server.stop().await;
}

#[tokio::test]
async fn a_revoked_client_loses_kept_connections() {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, hello);
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let stream = server.connect_as(&card, &[b"http/1.1"]).await.unwrap();
    let (mut first, connection) = http1::handshake::<_, Body>(TokioIo::new(stream))
        .await
        .unwrap();
    let first_driver = tokio::spawn(connection);
    let stream = server.connect_as(&card, &[b"h2"]).await.unwrap();
    let (mut second, connection) =
        http2::handshake::<_, _, Body>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let second_driver = tokio::spawn(connection);
    for _ in 0..2 {
        let request = Request::get("/")
            .header("host", "a")
            .body(text(""))
            .unwrap();
        let response = first.send_request(request).await.unwrap();
        assert_eq!(response.collect().await.unwrap().to_bytes(), "hello");
        first.ready().await.unwrap();
        let request = Request::get("https://a/").body(text("")).unwrap();
        let response = second.send_request(request).await.unwrap();
        assert_eq!(response.collect().await.unwrap().to_bytes(), "hello");
    }
    let verdicts = server
        .handle
        .metrics()
        .handshakes(exoskel_service::Outcome::Accepted);
    assert_eq!(verdicts, 2, "one for each connection");
    server.authority.revoke(&card);
    server.handle.renew().await;
    let _ = first_driver.await.unwrap();
    let _ = second_driver.await.unwrap();
    assert_eq!(behind.heads().len(), 4);
    server.stop().await;
}

#[tokio::test]
async fn a_server_that_is_down_is_a_bad_gateway() {
    let server = front_of(Scratch::new(), |_| (), |_| ());
    let card = server.authority.user("ada");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let answer = raw(&server, &card, request).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_a_gateway_timeout() {
    let _held = HeldTime::new();
    let scratch = Scratch::new();
    let asked = Arc::new(Notify::new());
    let noted = asked.clone();
    let _behind = Behind::start(&scratch, move |_request| {
        noted.notify_one();
        std::future::pending()
    });
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let (answer, ()) = tokio::join!(raw(&server, &card, request), async {
        asked.notified().await;
        advance(Duration::from_secs(61)).await;
    });
    assert!(answer.starts_with("HTTP/1.1 504"), "{answer}");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_a_request_timeout() {
    let _held = HeldTime::new();
    let scratch = Scratch::new();
    let asked = Arc::new(Notify::new());
    let noted = asked.clone();
    let _behind = Behind::start(&scratch, move |request: Request<Incoming>| {
        noted.notify_one();
        async {
            let _ = request.into_body().collect().await;
            Response::new(text("never"))
        }
    });
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let request =
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\nConnection: close\r\n\r\nabc";
    let (answer, ()) = tokio::join!(raw(&server, &card, request), async {
        asked.notified().await;
        while server.handle.open().0 > 0 {
            advance(Duration::from_secs(1)).await;
            tokio::task::yield_now().await;
        }
    });
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_full_queue_is_answered_with_503() {
    let scratch = Scratch::new();
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (noted, waited) = (begun.clone(), go_on.clone());
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let _behind = Behind::start(&scratch, move |_request| {
        counted.fetch_add(1, Ordering::SeqCst);
        noted.notify_one();
        let waited = waited.clone();
        async move {
            waited.notified().await;
            Response::new(text("at last"))
        }
    });
    let server = front_of(
        scratch,
        |_| (),
        |settings| {
            settings.limits.requests_max = 1;
            settings.limits.requests_waiting_max = 0;
        },
    );
    let card = server.authority.user("ada");
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let (first, ()) = tokio::join!(raw(&server, &card, request), async {
        begun.notified().await;
        let second = raw(&server, &card, request).await;
        assert!(second.starts_with("HTTP/1.1 503"), "{second}");
        assert!(
            second.to_ascii_lowercase().contains("retry-after: 1"),
            "{second}"
        );
        go_on.notify_one();
    });
    assert!(first.ends_with("at last"), "{first}");
    assert_eq!(count.load(Ordering::SeqCst), 1);
    server.stop().await;
}

/// TRACE sends back what the server behind got, with the secret in it; `Proxy` becomes `HTTP_PROXY` for every program that
/// a gateway starts.
#[tokio::test]
async fn what_would_betray_or_mislead_the_server_behind_is_not_passed_on() {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, hello);
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let request = |method: &str, host: &str, more: &str| {
        format!("{method} / HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n")
    };
    for method in ["TRACE", "TRACK"] {
        let answer = raw(&server, &card, request(method, "a", "").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 405"), "{answer}");
    }
    let answer = raw(&server, &card, request("GET", "evil@a", "").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(behind.heads(), []);
    let proxy = "Proxy: http://192.0.2.1/\r\n";
    let answer = raw(&server, &card, request("GET", "a", proxy).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(!behind.heads()[0].1.contains_key("proxy"));
    server.stop().await;
}

/// Two statements about where the body ends: the chunks count, and nothing of it becomes a request of its own.
#[tokio::test]
async fn no_request_hides_in_a_body() {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, |request: Request<Incoming>| async {
        let body = request.into_body().collect().await;
        Response::new(text(&format!("{:?}", body.map(|body| body.to_bytes()))))
    });
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    for lengths in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: xchunked\r\nContent-Length: 4\r\n",
        "Content-Length: 4, 5\r\n",
        "Content-Length: +4\r\n",
    ] {
        let chunk = format!("{:x}\r\n{hidden}\r\n0\r\n\r\n", hidden.len());
        let request = format!(
            "POST /open HTTP/1.1\r\nHost: a\r\n{lengths}Connection: close, content-length\r\n\r\n{chunk}"
        );
        let answer = raw(&server, &card, request.as_bytes()).await;
        let targets: Vec<String> = behind
            .heads()
            .into_iter()
            .map(|(target, _)| target)
            .collect();
        assert!(
            !targets.contains(&"/hidden".to_owned()),
            "{lengths}: {answer}"
        );
    }
    server.stop().await;
}
