//! The front through real HTTP: what the server behind gets to see, what passes, and what happens when it can't answer.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use exoskel_service::{ConnectionEnd, FrontSecret, FrontSettings};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use peers::behind::{Behind, Body, text};
use peers::fronts::{Parts, before, front_of, hello, http2_client, values};
use peers::{HeldTime, Scratch, raw};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::advance;

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
    let (behind, server, card) = before(|request: Request<Incoming>| async {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(text(&body.len().to_string()))
    });
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
    let (behind, server, card) = before(|request: Request<Incoming>| async {
        Response::new(request.into_body().boxed_unsync())
    });
    let (mut sender, driver) = http2_client(&server, &card).await;
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
    let (_behind, server, card) =
        before(|_request| async { Response::new(Endless.boxed_unsync()) });
    let (mut sender, driver) = http2_client(&server, &card).await;
    let request = Request::get("https://a/").body(text("")).unwrap();
    // The connection is read all the time; only this answer's window stays shut.
    let response = sender.send_request(request).await.unwrap();
    while server.handle.metrics().ended(ConnectionEnd::Slow) == 0 {
        advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    let _ = driver.await.unwrap();
    drop(response);
    server.stop().await;
}

/// Answers an upgrade and sends back what comes through it.
async fn websocket(mut request: Request<Incoming>) -> Response<Body> {
    let key = request.headers()["sec-websocket-key"].as_bytes();
    let answer = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA1_FOR_LEGACY_USE_ONLY, &answer);
    let accept = data_encoding::BASE64.encode(digest.as_ref());
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
        .header("sec-websocket-accept", accept)
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
    assert!(server.handle.metrics().ended(ConnectionEnd::NoLongerGood) >= 1);
    server.stop().await;
}

fn extended_connect(protocol: &'static str) -> Request<Body> {
    let mut request = Request::connect("https://service.example.org/chat?room=1")
        .header("sec-websocket-version", "13")
        .header("exoskel-subject", "\"/CN=root\"")
        .body(text(""))
        .unwrap();
    let protocol = hyper::ext::Protocol::from_static(protocol);
    request.extensions_mut().insert(protocol);
    request
}

#[tokio::test]
async fn websockets_share_a_connection_of_http_2_until_their_owner_is_revoked() {
    let (behind, server, card) = before(|request: Request<Incoming>| async {
        match request.uri().path() {
            "/chat" => websocket(request).await,
            _ => hello(request).await,
        }
    });
    let (mut sender, driver) = http2_client(&server, &card).await;
    // The first answer shows that the client has the server's settings, this one among them.
    let page = || Request::get("https://a/").body(text("")).unwrap();
    assert_eq!(sender.send_request(page()).await.unwrap().status(), 200);
    let mut open = Vec::new();
    for _ in 0..2 {
        let response = sender.send_request(extended_connect("websocket")).await;
        let response = response.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key("sec-websocket-accept"));
        open.push(TokioIo::new(hyper::upgrade::on(response).await.unwrap()));
    }
    for word in ["ping", "pong"] {
        for tunnel in &mut open {
            tunnel.write_all(word.as_bytes()).await.unwrap();
            let mut echo = [0; 4];
            tunnel.read_exact(&mut echo).await.unwrap();
            assert_eq!(&echo, word.as_bytes());
        }
    }
    // Pages pass between them, and other protocols don't.
    assert_eq!(sender.send_request(page()).await.unwrap().status(), 200);
    let other = sender.send_request(extended_connect("connect-udp")).await;
    assert_eq!(other.unwrap().status(), StatusCode::METHOD_NOT_ALLOWED);
    let (target, head) = &behind.heads()[1];
    assert_eq!(target, "/chat?room=1");
    assert_eq!(values(head, "upgrade"), ["websocket"]);
    assert_eq!(values(head, "host"), ["service.example.org"]);
    assert!(values(head, "exoskel-subject")[0].contains("CN=ada"));
    assert_eq!(behind.heads().len(), 4);
    // One is closed by its client, the other one by the server.
    let mut closed = open.pop().unwrap();
    closed.shutdown().await.unwrap();
    assert_eq!(closed.read(&mut [0]).await.unwrap(), 0);
    server.authority.revoke(&card);
    server.handle.renew().await;
    let mut rest = Vec::new();
    let _ = open[0].read_to_end(&mut rest).await;
    assert!(rest.is_empty());
    let _ = driver.await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn nobody_takes_all_websockets() {
    let scratch = Scratch::new();
    let _behind = Behind::start(&scratch, websocket);
    let one_each = |settings: &mut FrontSettings| settings.tunnels_per_identity_max = 1;
    let server = front_of(scratch, one_each, |_| ());
    let (ada, bob) = (server.authority.user("ada"), server.authority.user("bob"));
    let mut open = Vec::new();
    for (card, status) in [(&ada, "101"), (&ada, "429"), (&bob, "101")] {
        let mut stream = server.connect_as(card, &[b"http/1.1"]).await.unwrap();
        stream.write_all(UPGRADE).await.unwrap();
        let head = head_of(&mut stream).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
        open.push(stream);
    }
    drop(open);
    server.stop().await;
}

#[tokio::test]
async fn a_websocket_of_http_2_needs_a_server_that_speaks_it() {
    let (behind, server, card) = before(|request: Request<Incoming>| async {
        if request.uri().path() == "/another" {
            let mut response = websocket(request).await;
            let of_another = http::HeaderValue::from_static("s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
            response
                .headers_mut()
                .insert("sec-websocket-accept", of_another);
            return response;
        }
        let mut response = Response::new(text("a page"));
        if request.uri().path() == "/refused" {
            *response.status_mut() = StatusCode::FORBIDDEN;
        }
        response
    });
    let (mut sender, driver) = http2_client(&server, &card).await;
    let page = Request::get("https://a/").body(text("")).unwrap();
    assert_eq!(sender.send_request(page).await.unwrap().status(), 200);
    for (path, status) in [
        ("/", StatusCode::BAD_GATEWAY),
        ("/refused", StatusCode::FORBIDDEN),
        ("/another", StatusCode::BAD_GATEWAY),
    ] {
        let mut request = extended_connect("websocket");
        *request.uri_mut() = format!("https://a{path}").parse().unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.status(), status, "{path}");
    }
    assert_eq!(behind.heads().len(), 4);
    drop(sender);
    driver.await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_revoked_client_loses_kept_connections() {
    let (behind, server, card) = before(hello);
    let stream = server.connect_as(&card, &[b"http/1.1"]).await.unwrap();
    let (mut first, connection) = http1::handshake::<_, Body>(TokioIo::new(stream))
        .await
        .unwrap();
    let first_driver = tokio::spawn(connection);
    let (mut second, second_driver) = http2_client(&server, &card).await;
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
        .handshakes(exoskel_service::HandshakeOutcome::Accepted);
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

#[tokio::test]
async fn nobody_takes_all_places() {
    let scratch = Scratch::new();
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (noted, waited) = (begun.clone(), go_on.clone());
    let _behind = Behind::start(&scratch, move |_request| {
        noted.notify_one();
        let waited = waited.clone();
        async move {
            waited.acquire().await.unwrap().forget();
            Response::new(text("at last"))
        }
    });
    let server = front_of(
        scratch,
        |_| (),
        |settings| {
            settings.limits.requests_max = 2;
            settings.limits.requests_per_identity_max = 1;
        },
    );
    let (ada, bob) = (server.authority.user("ada"), server.authority.user("bob"));
    let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let (first, ()) = tokio::join!(raw(&server, &ada, request), async {
        begun.notified().await;
        // Another connection of hers, and one of somebody else.
        let second = raw(&server, &ada, request).await;
        assert!(second.starts_with("HTTP/1.1 429"), "{second}");
        let retry = second.to_ascii_lowercase().contains("retry-after: 1");
        assert!(retry, "{second}");
        let (third, ()) = tokio::join!(raw(&server, &bob, request), async {
            begun.notified().await;
            go_on.add_permits(2);
        });
        assert!(third.ends_with("at last"), "{third}");
    });
    assert!(first.ends_with("at last"), "{first}");
    // Her place is free again.
    let (again, ()) = tokio::join!(raw(&server, &ada, request), async {
        begun.notified().await;
        go_on.add_permits(1);
    });
    assert!(again.ends_with("at last"), "{again}");
    server.stop().await;
}

/// TRACE sends back what the server behind got, with the secret in it; `Proxy` becomes `HTTP_PROXY` for every program that
/// a gateway starts.
#[tokio::test]
async fn what_would_betray_or_mislead_the_server_behind_is_not_passed_on() {
    let (behind, server, card) = before(hello);
    let request = |method: &str, host: &str, more: &str| {
        format!("{method} / HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n")
    };
    for method in ["TRACE", "TRACK", "trace", "Track", "connect"] {
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
    let (behind, server, card) = before(|request: Request<Incoming>| async {
        let body = request.into_body().collect().await;
        Response::new(text(&format!("{:?}", body.map(|body| body.to_bytes()))))
    });
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
