//! Whose fault it is: heads that are too large, bodies that break, hosts that differ. A client's fault is never a bad gateway.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::time::Duration;

use bytes::Bytes;
use exoskel_service::Settings;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use peers::behind::{Behind, Body, text};
use peers::fronts::{Parts, before, front_of, hello, http2_client, values};
use peers::{HeldTime, Scratch, raw};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::time::advance;

/// The default of `header_bytes_max`.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// Answers with what came of the body.
async fn echo(request: Request<Incoming>) -> Response<Body> {
    match request.into_body().collect().await {
        Ok(body) => Response::new(text(&format!("{:?}", body.to_bytes()))),
        Err(_) => Response::new(text("the body broke off")),
    }
}

fn counted(server: &peers::Running, status: u16) -> bool {
    let line = format!("{{status=\"{status}\"}}");
    let metrics = server.handle.metrics().text();
    metrics.lines().any(|one| one.contains(&line))
}

#[tokio::test]
async fn a_head_of_http_1_has_a_limit_to_the_byte() {
    let (behind, server, card) = before(hello);
    let head = |bytes: usize, in_target: bool| {
        let rest = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Long: \r\n\r\n";
        let (target, field) = if in_target {
            (bytes - rest.len(), 0)
        } else {
            (0, bytes - rest.len())
        };
        let (target, field) = ("a".repeat(target), "a".repeat(field));
        format!("GET /{target} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Long: {field}\r\n\r\n")
    };
    for in_target in [false, true] {
        let good = head(HEAD_BYTES_MAX, in_target);
        assert_eq!(good.len(), HEAD_BYTES_MAX);
        let answer = raw(&server, &card, good.as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        let answer = raw(
            &server,
            &card,
            head(HEAD_BYTES_MAX + 1, in_target).as_bytes(),
        )
        .await;
        let expected = if in_target {
            "HTTP/1.1 414"
        } else {
            "HTTP/1.1 431"
        };
        // A target alone can be too long for the parser too.
        assert!(
            answer.starts_with("HTTP/1.1 431") || answer.starts_with(expected),
            "{answer}"
        );
    }
    assert_eq!(behind.heads().len(), 2);
    for bytes in [HEAD_BYTES_MAX + 1, 100_000] {
        let answer = raw(&server, &card, head(bytes, false).as_bytes()).await;
        let said = format!("the head of this request has {bytes} bytes, expected at most 65536\n");
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
        assert!(answer.ends_with(&said), "{answer}");
    }
    assert!(counted(&server, 431));
    let answer = raw(&server, &card, head(300_000, false).as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    assert_eq!(behind.heads().len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn a_head_of_http_2_has_the_same_limit() {
    let (behind, server, card) = before(hello);
    let (mut sender, driver) = http2_client(&server, &card).await;
    // RFC 9113 section 6.5.2: each field has 32 bytes more than its name and value.
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "a"),
        (":path", "/"),
        ("x-long", ""),
    ];
    let rest: usize = fields
        .map(|(name, value)| name.len() + value.len() + 32)
        .iter()
        .sum();
    for (bytes, status) in [
        (HEAD_BYTES_MAX, 200),
        (HEAD_BYTES_MAX + 1, 431),
        (100_000, 431),
    ] {
        let long = HeaderValue::from_str(&"a".repeat(bytes - rest)).unwrap();
        let request = Request::get("https://a/").header("x-long", long);
        let response = sender.send_request(request.body(text("")).unwrap()).await;
        let response = response.unwrap();
        assert_eq!(response.status(), status, "{bytes}");
        let said = response.collect().await.unwrap().to_bytes();
        if status == 431 {
            let expected = format!("has {bytes} bytes, expected at most 65536");
            assert!(
                String::from_utf8_lossy(&said).contains(&expected),
                "{said:?}"
            );
        }
    }
    assert_eq!(behind.heads().len(), 1);
    drop(sender);
    driver.await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn fields_are_counted_over_http_2_too() {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, hello);
    let ten = |settings: &mut Settings| settings.limits.headers_max = 10;
    let server = front_of(scratch, |_| (), ten);
    let card = server.authority.user("ada");
    let (mut sender, driver) = http2_client(&server, &card).await;
    // Pieces of a cookie are one field.
    for (fields, cookies, status) in [(10, 0, 200), (11, 0, 431), (9, 20, 200), (10, 1, 431)] {
        let mut request = Request::get("https://a/");
        for number in 0..fields {
            request = request.header(format!("x-{number}"), "1");
        }
        for _ in 0..cookies {
            request = request.header("cookie", "a=1");
        }
        let response = sender.send_request(request.body(text("")).unwrap()).await;
        assert_eq!(response.unwrap().status(), status, "{fields} and {cookies}");
    }
    assert_eq!(behind.heads().len(), 2);
    drop(sender);
    driver.await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn the_head_of_an_answer_has_the_limit_too() {
    let (_behind, server, card) = before(|request: Request<Incoming>| async move {
        let bytes: usize = request.uri().path()[1..].parse().unwrap();
        let long = HeaderValue::from_str(&"a".repeat(bytes)).unwrap();
        Response::builder()
            .header("x-long", long)
            .body(text("hello"))
            .unwrap()
    });
    for (bytes, status) in [(65_000, 200), (HEAD_BYTES_MAX, 502), (100_000, 502)] {
        let request = format!("GET /{bytes} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        let answer = raw(&server, &card, request.as_bytes()).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{bytes}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_body_that_can_not_be_read_is_a_bad_request() {
    let (_behind, server, card) = before(echo);
    let chunked = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in [
        "xyz\r\n",
        "3\r\nabcdef\r\n0\r\n\r\n",
        "-3\r\nabc\r\n0\r\n\r\n",
        "fffffffffffffffff\r\nabc",
        "3\r\nabc\r\n0\r\nno trailer\r\n\r\n",
    ] {
        let answer = raw(&server, &card, format!("{chunked}{body}").as_bytes()).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{body:?}: {answer:?}");
        let said = answer.ends_with("the request's body is malformed, or broke off\n");
        assert!(said, "{body:?}: {answer:?}");
    }
    assert!(counted(&server, 400));
    assert!(!counted(&server, 502));
    server.stop().await;
}

#[tokio::test]
async fn an_upload_that_is_broken_off_is_no_fault_of_the_server_behind() {
    let (_behind, server, card) = before(echo);
    for head in [
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nabc",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc",
    ] {
        let mut stream = server.connect_as(&card, &[b"http/1.1"]).await.unwrap();
        stream.write_all(head.as_bytes()).await.unwrap();
        // It says that nothing more comes, and still listens.
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(!answer.starts_with("HTTP/1.1 5"), "{answer}");
    }
    assert!(!counted(&server, 502));
    server.stop().await;
}

/// The server behind has 60 seconds for its answer. An upload may take longer, as long as it goes on.
#[tokio::test(start_paused = true)]
async fn a_slow_upload_is_no_silent_server() {
    let _held = HeldTime::new();
    let (behind, server, card) = before(echo);
    let (mut sender, driver) = http2_client(&server, &card).await;
    let (parts, received) = mpsc::channel::<Bytes>(1);
    let request = Request::post("https://a/").body(Parts(received).boxed_unsync());
    let answered = tokio::spawn(sender.send_request(request.unwrap()));
    while behind.heads().is_empty() {
        tokio::task::yield_now().await;
    }
    // 32 KiB earn more than the 20 seconds until the next ones come.
    for _ in 0..6 {
        parts
            .send(Bytes::from_static(&[0; 32 * 1024]))
            .await
            .unwrap();
        advance(Duration::from_secs(20)).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
    drop(parts);
    assert_eq!(answered.await.unwrap().unwrap().status(), StatusCode::OK);
    drop(sender);
    let _ = driver.await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn a_request_is_for_one_host() {
    let (behind, server, card) = before(hello);
    let refused = [
        "GET / HTTP/1.1\r\nHost: a:b\r\n",
        "GET / HTTP/1.1\r\nHost: [::1]x\r\n",
        "GET / HTTP/1.1\r\nHost: a:80:80\r\n",
        "GET / HTTP/1.1\r\nHost:\r\n",
        "GET / HTTP/1.1\r\nHost: :80\r\n",
        "GET / HTTP/1.1\r\nHost : a\r\n",
        "GET / HTTP/1.1\r\nHost: a\r\n b\r\n",
        "GET / HTTP/1.1\r\nX: y\r\n\tz\r\nHost: a\r\n",
        "GET http://me@a/ HTTP/1.1\r\nHost: a\r\n",
        "GET http://a:b/ HTTP/1.1\r\nHost: a\r\n",
        "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: a\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n",
    ];
    for head in refused {
        let request = format!("{head}Connection: close\r\n\r\n");
        let answer = raw(&server, &card, request.as_bytes()).await;
        assert!(
            answer.starts_with("HTTP/1.1 400") || answer.is_empty(),
            "{head:?}: {answer:?}"
        );
    }
    assert_eq!(behind.heads(), []);
    let absolute = "GET http://b:80/path HTTP/1.1\r\nHost: a\r\nConnection: close, host\r\n\r\n";
    let answer = raw(&server, &card, absolute.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let (target, head) = &behind.heads()[0];
    assert_eq!(target, "/path");
    assert_eq!(values(head, "host"), ["b:80"]);
    assert_eq!(values(head, "x-forwarded-host"), ["b:80"]);

    let (mut sender, driver) = http2_client(&server, &card).await;
    for (host, status) in [("b", 400), ("A", 200)] {
        let request = Request::get("https://a/").header("host", host);
        let response = sender.send_request(request.body(text("")).unwrap()).await;
        assert_eq!(response.unwrap().status(), status, "{host}");
    }
    drop(sender);
    driver.await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test]
async fn nothing_rides_along_with_a_wish_for_a_websocket() {
    let (behind, server, card) = before(|_request: Request<Incoming>| async {
        // To something that was not asked for.
        Response::builder()
            .status(StatusCode::SWITCHING_PROTOCOLS)
            .header("connection", "upgrade")
            .header("upgrade", "h2c")
            .body(text(""))
            .unwrap()
    });
    let upgrade =
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade, close\r\nUpgrade: websocket\r\n";
    let hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
    let length = format!("{upgrade}Content-Length: {}\r\n\r\n{hidden}", hidden.len());
    let answer = raw(&server, &card, length.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    assert_eq!(behind.heads(), []);
    let answer = raw(&server, &card, format!("{upgrade}\r\n").as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
    server.stop().await;
}

#[tokio::test]
async fn a_body_arrives_whole_and_its_end_is_stated_once() {
    let (behind, server, card) = before(echo);
    for (request, framing) in [
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n",
            "transfer-encoding",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n",
            "transfer-encoding",
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 3\r\n",
            "content-length",
        ),
    ] {
        let body = if framing == "content-length" {
            "abc"
        } else {
            "3\r\nabc\r\n0\r\n\r\n"
        };
        let request = format!("{request}Connection: close, content-length\r\n\r\n{body}");
        let answer = raw(&server, &card, request.as_bytes()).await;
        assert!(answer.ends_with("b\"abc\""), "{answer}");
        let (_, head) = behind.heads().pop().unwrap();
        assert_eq!(values(&head, framing).len(), 1);
        assert_eq!(
            values(&head, "content-length").len() + values(&head, "transfer-encoding").len(),
            1
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn the_secret_does_not_come_back_in_trailers() {
    let scratch = Scratch::new();
    let listener = UnixListener::bind(scratch.path().join("app.sock")).unwrap();
    let behind = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 4096]).await.unwrap();
        let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                      0\r\nExoskel-Front-Secret: x\r\nX-Kept: x\r\n\r\n";
        socket.write_all(answer.as_bytes()).await.unwrap();
    });
    let server = front_of(scratch, |_| (), |_| ());
    let card = server.authority.user("ada");
    let (mut sender, driver) = http2_client(&server, &card).await;
    let request = Request::get("https://a/").body(text("")).unwrap();
    let response = sender.send_request(request).await.unwrap();
    let body = response.collect().await.unwrap();
    assert_eq!(body.trailers().unwrap().len(), 1, "{:?}", body.trailers());
    behind.await.unwrap();
    drop(sender);
    driver.await.unwrap().unwrap();
    server.stop().await;
}
