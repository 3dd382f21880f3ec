//! What a front lets pass by path and method, what it tells those whom it doesn't, and what it writes down of both.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use exoskel_service::{
    AccessLog, Audit, Balancer, Configuration, Front, HandshakeOutcome, LogTarget, Refusal,
    RefusalCause, Rules, Settings,
};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use peers::behind::{Behind, Body, text};
use peers::fronts::{hello, http2_client, values};
use peers::{Authority, Card, Running, Scratch, audited, raw};
use rustls::RootCertStore;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;

/// Longer than anything here takes.
const FOR_EVER: Duration = Duration::from_secs(30);

const POLICY: &str = "\
[deny]
banned = [\"mallory\"]
[[allow.rule]]
action = [\"connect\", \"submit\"]
dn = \"*\"
[[allow.rule]]
action = \"administer\"
dn = \"/O=Grid/CN=Root\"
";

const PATHS: &str = "\
[[path]]
prefix = \"/health\"
certificate = false
[[path]]
prefix = \"/jobs\"
methods = [\"POST\"]
action = \"submit\"
[[path]]
prefix = \"/admin\"
action = \"administer\"
[[path]]
prefix = \"/\"
methods = [\"GET\"]
";

/// A front with a policy and path rules, before a server that says hello.
struct Ruled {
    behind: Behind,
    server: Running,
    policy: PathBuf,
    trail: PathBuf,
    log: PathBuf,
}

impl Ruled {
    fn start(paths: &str) -> Self {
        Self::start_with(paths, hello, |_| ())
    }

    fn start_with<F, R>(paths: &str, answer: F, change: impl FnOnce(&mut Settings)) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Response<Body>> + Send,
    {
        let scratch = Scratch::new();
        let behind = Behind::start(&scratch, answer);
        let place = |name: &str| scratch.path().join(name);
        let (policy, trail, log) = (place("policy.toml"), place("audit"), place("access"));
        std::fs::write(&policy, POLICY).unwrap();
        let rules = Rules::open(&policy).unwrap();
        let audit = Audit::open(&LogTarget::File(trail.clone())).unwrap();
        let access_log = AccessLog::open(&LogTarget::File(log.clone())).unwrap();
        let front = Front::new(configuration(scratch.path(), paths).front().unwrap());
        let server = Running::start_in(scratch, front, |settings| {
            settings.rules = Some(rules);
            settings.audit = audit;
            settings.access_log = access_log;
            change(settings);
        });
        Self {
            behind,
            server,
            policy,
            trail,
            log,
        }
    }

    async fn ask(&self, card: &Card, method: &str, path: &str) -> (u16, String) {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        );
        answer(&raw(&self.server, card, request.as_bytes()).await)
    }

    fn targets(&self) -> Vec<String> {
        let heads = self.behind.heads();
        heads.into_iter().map(|(target, _)| target).collect()
    }
}

fn configuration(place: &Path, more: &str) -> Configuration {
    let (more, paths) = match more.find("[[path]]") {
        Some(start) => more.split_at(start),
        None => (more, ""),
    };
    let text = format!(
        "listen = \"127.0.0.1:0\"\n{more}\n[upstream]\naddress = \"unix:{}\"\n{paths}",
        place.join("app.sock").display()
    );
    Configuration::parse(&text).unwrap()
}

fn answer(text: &str) -> (u16, String) {
    let status = text.split(' ').nth(1).unwrap_or("0").parse().unwrap();
    let body = text.split_once("\r\n\r\n").unwrap_or_default().1;
    (status, body.to_owned())
}

/// A request of a client that has no certificate.
async fn ask_without_certificate(server: &Running, path: &str) -> std::io::Result<(u16, String)> {
    let mut stream = connect_without_certificate(server, b"http/1.1").await?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut got = Vec::new();
    stream.read_to_end(&mut got).await?;
    Ok(answer(&String::from_utf8_lossy(&got)))
}

async fn connect_without_certificate(
    server: &Running,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(server.authority.root().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let socket = TcpStream::connect(server.address).await?;
    peers::connect(config, socket).await
}

/// The lines of a log, once there are as many.
async fn lines(file: &Path, count: usize) -> Vec<serde_json::Value> {
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if text.lines().count() >= count && text.ends_with('\n') {
            return audited(file);
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_rule_decides_by_path_and_method_before_the_server_behind_hears_of_it() {
    let front = Ruled::start(PATHS);
    let ada = front.server.authority.user("ada");
    assert_eq!(front.ask(&ada, "GET", "/").await, (200, "hello".to_owned()));
    assert_eq!(front.ask(&ada, "POST", "/jobs/7").await.0, 200);
    let (status, reason) = front.ask(&ada, "GET", "/admin").await;
    assert_eq!(status, 403);
    assert!(
        reason.contains("administer") && reason.contains("/O=Grid/CN=Root"),
        "{reason}"
    );
    let (status, unnamed) = front.ask(&ada, "DELETE", "/files").await;
    assert!(
        status == 403 && unnamed.contains("no path rule"),
        "{unnamed}"
    );
    assert_eq!(front.targets(), ["/", "/jobs/7"]);
    let refused: Vec<_> = lines(&front.trail, 5)
        .await
        .into_iter()
        .filter(|line| line["verdict"] == "refused")
        .collect();
    let [line] = &refused[..] else {
        panic!("{refused:?}")
    };
    assert_eq!(line["action"], "administer");
    assert_eq!(format!("{}\n", line["reason"].as_str().unwrap()), reason);
    front.server.stop().await;
}

#[tokio::test]
async fn no_spelling_of_a_path_gets_around_a_rule() {
    let front = Ruled::start(PATHS);
    let ada = front.server.authority.user("ada");
    for path in [
        "//admin",
        "/x//admin",
        "/./admin",
        "/health/../admin",
        "/health/%2e%2e/admin",
        "/health/..;/admin",
        "/health%2F..%2Fadmin",
        "/health/%252e%252e/admin",
        "/health/%25%32%65%25%32%65/admin",
        "/health/%c0%ae%c0%ae/admin",
        "/admin%00",
        "/admin%00.html",
        "/admin%5c",
        "/ADMIN",
        "/Admin/users",
        "/admin.",
        "/admin%20",
        "/admin;a=b",
        "/admin%3fa",
        "/%41dmin",
        "http://other/ADMIN",
        "http://other//admin",
        "http://other/health/../admin",
    ] {
        let (status, reason) = front.ask(&ada, "GET", path).await;
        assert_eq!(status, 400, "{path}: {reason}");
    }
    for path in [
        "/admin",
        "/%61dmin",
        "/admin/",
        "/admin?x=/health",
        "https://other/admin",
        "/admin/a.b",
    ] {
        let (status, reason) = front.ask(&ada, "GET", path).await;
        assert_eq!(status, 403, "{path}: {reason}");
    }
    // A method that some servers read as another, and fields that ask for another.
    assert_eq!(front.ask(&ada, "post", "/jobs").await.0, 400);
    assert_eq!(front.ask(&ada, "get", "/").await.0, 400);
    assert!(front.targets().is_empty(), "{:?}", front.targets());
    let override_fields =
        b"GET /health/admin HTTP/1.1\r\nHost: a\r\nX-HTTP-Method-Override: DELETE\r\nX_HTTP_Method: DELETE\r\n\
        X-Original-URL: /admin\r\nX-Rewrite-Url: /admin\r\nX-Override-URL: /admin\r\nX-HTTP-Path-Override: /admin\r\n\
        SCRIPT_NAME: /health\r\nX-Script-Name: /health\r\nPath-Info: /admin\r\n\
        Transfer_Encoding: chunked\r\nContent.Length: 5\r\nConnection: close\r\n\r\n";
    let got = raw(&front.server, &ada, override_fields).await;
    assert_eq!(answer(&got).0, 200);
    let [(_, head)] = &front.behind.heads()[..] else {
        panic!()
    };
    let named: Vec<&str> = head.keys().map(|name| name.as_str()).collect();
    let forbidden = ["method", "ur", "path", "script", "length", "encoding"];
    for word in forbidden {
        assert!(!named.iter().any(|name| name.contains(word)), "{named:?}");
    }
    front.server.stop().await;
}

/// Both ways to say where a body ends, spaces before a colon, folded lines: the server behind sees each request that the front
/// saw, and no other.
#[tokio::test]
async fn no_request_is_smuggled_past_a_rule() {
    let front = Ruled::start(PATHS);
    let ada = front.server.authority.user("ada");
    let hidden = "GET /admin HTTP/1.1\r\nHost: a\r\n\r\n";
    for head in [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Content-Length: 5\r\nTransfer-Encoding : chunked",
        "Content-Length: 5\r\nTransfer-Encoding:\x0bchunked",
        "Content-Length: 5\r\nTransfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x",
        "Content-Length: +5",
        "Content-Length: 5, 6",
        "X: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 5",
    ] {
        let request = format!(
            "POST /jobs HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n0\r\n\r\n{hidden}GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        );
        raw(&front.server, &ada, request.as_bytes()).await;
    }
    let targets = front.targets();
    assert!(
        targets
            .iter()
            .all(|target| target == "/jobs" || target == "/last"),
        "{targets:?}"
    );
    for (_, head) in front.behind.heads() {
        let lengths = values(&head, "content-length").len();
        assert!(
            lengths + values(&head, "transfer-encoding").len() <= 1,
            "{head:?}"
        );
    }
    front.server.stop().await;
}

#[tokio::test]
async fn somebody_refused_is_told_why_over_http() {
    let front = Ruled::start(PATHS);
    let mallory = front.server.authority.user("mallory");
    let (status, reason) = front.ask(&mallory, "GET", "/").await;
    assert_eq!(status, 403);
    let line = lines(&front.trail, 1).await.pop().unwrap();
    assert_eq!(
        (line["action"].as_str(), line["verdict"].as_str()),
        (Some("connect"), Some("refused"))
    );
    assert_eq!(format!("{}\n", line["reason"].as_str().unwrap()), reason);
    assert!(reason.contains("\"mallory\" is banned"), "{reason}");
    // What needs no certificate is for everybody, and says nothing about them.
    assert_eq!(front.ask(&mallory, "GET", "/health").await.0, 200);
    let [(_, head)] = &front.behind.heads()[..] else {
        panic!()
    };
    assert!(values(head, "exoskel-subject").is_empty());
    assert_eq!(values(head, "exoskel-anonymous"), ["?1"]);
    // Over HTTP/2 too, and the connection ends with the answer.
    let (mut sender, driven) = http2_client(&front.server, &mallory).await;
    let request = Request::get("https://a/").body(text("")).unwrap();
    let got = sender.send_request(request).await.unwrap();
    assert_eq!(got.status(), StatusCode::FORBIDDEN);
    let said = got.into_body().collect().await.unwrap().to_bytes();
    assert!(said.ends_with(reason.as_bytes()));
    driven.await.unwrap().unwrap();
    let metrics = front.server.handle.metrics();
    assert_eq!(metrics.handshakes(HandshakeOutcome::Refused), 3);
    assert_eq!(metrics.identities_refused(RefusalCause::Banned), 3);
    front.server.stop().await;
}

/// A client that sends all of its body before it reads gets its answer too.
#[tokio::test]
async fn a_refused_upload_gets_its_answer() {
    let front = Ruled::start(PATHS);
    let authority = &front.server.authority;
    for (card, path) in [
        (authority.user("mallory"), "/jobs"),
        (authority.user("ada"), "/admin"),
    ] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\nConnection: close\r\n\r\n"
        );
        let mut request = head.into_bytes();
        request.resize(request.len() + 900_000, b'x');
        // Buffers that don't hold the request: the client is still writing when the answer is there.
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_send_buffer_size(16 * 1024).unwrap();
        let socket = socket.connect(front.server.address).await.unwrap();
        let config = front
            .server
            .client(&card, &[b"http/1.1"], &[&rustls::version::TLS13]);
        let mut stream = peers::connect(config, socket).await.unwrap();
        stream.write_all(&request).await.unwrap();
        let mut got = Vec::new();
        let _ = stream.read_to_end(&mut got).await;
        assert_eq!(answer(&String::from_utf8_lossy(&got)).0, 403);
    }
    assert!(front.targets().is_empty());
    front.server.stop().await;
}

/// Somebody who writes http:// for https://.
#[tokio::test]
async fn plain_http_is_told_to_use_tls() {
    let front = Ruled::start(PATHS);
    for request in ["GET /health HTTP/1.1\r\nHost: a\r\n\r\n", "PUT /x"] {
        let mut socket = TcpStream::connect(front.server.address).await.unwrap();
        socket.write_all(request.as_bytes()).await.unwrap();
        socket.shutdown().await.unwrap();
        let mut got = String::new();
        socket.read_to_string(&mut got).await.unwrap();
        assert!(got.starts_with("HTTP/1.1 400 "), "{got}");
        assert!(got.contains("write https:// instead of http://"), "{got}");
    }
    // What is neither gets an alert of TLS, or nothing.
    let mut socket = TcpStream::connect(front.server.address).await.unwrap();
    socket.write_all(b"garbage garbage").await.unwrap();
    let mut got = Vec::new();
    let _ = socket.read_to_end(&mut got).await;
    assert!(!got.starts_with(b"HTTP"));
    let metrics = front.server.handle.metrics();
    assert_eq!(metrics.handshakes(HandshakeOutcome::Failed), 3);
    assert!(front.targets().is_empty());
    front.server.stop().await;
}

/// What the server behind says of its own requirements is looked into, and kept from clients.
#[tokio::test]
async fn a_requirement_that_is_not_met_has_a_line_in_the_trail() {
    let answer = |request: Request<Incoming>| async move {
        let mut response = Response::new(text("no"));
        *response.status_mut() = StatusCode::FORBIDDEN;
        let said = request.headers()["x-says"].clone();
        response.headers_mut().insert("exoskel-unmet", said);
        response
    };
    let front = Ruled::start_with("", answer, |_| ());
    let ada = front.server.authority.user("ada");
    let said = [
        ("vo=\"atlas\"", Some("require organisation atlas")),
        (
            "fqan=\"/atlas/Role=pilot\"",
            Some("require /atlas/Role=pilot"),
        ),
        ("dn=\"/CN=bob\"", Some("require /CN=bob")),
        // That is so: nothing was refused for it.
        ("limited=?0", None),
        // A program that misbehaves.
        ("dn=\"/CN=bob\", vo=\"x\"", None),
        ("dn=\"\"", None),
    ];
    for (value, _) in said {
        let request =
            format!("GET / HTTP/1.1\r\nHost: a\r\nX-Says: {value}\r\nConnection: close\r\n\r\n");
        let answer = raw(&front.server, &ada, request.as_bytes()).await;
        assert!(!answer.contains("unmet"), "{answer}");
    }
    let lines = lines(&front.trail, 9).await;
    let refused: Vec<_> = lines
        .iter()
        .filter(|line| line["verdict"] == "refused")
        .map(|line| line["action"].as_str().unwrap())
        .collect();
    let expected: Vec<_> = said.iter().filter_map(|(_, action)| *action).collect();
    assert_eq!(refused, expected);
    assert_eq!(lines.len(), 9);
    front.server.stop().await;
}

#[tokio::test]
async fn a_stranger_gets_no_websocket() {
    let front = Ruled::start(PATHS);
    let wish = b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n";
    let mallory = front.server.authority.user("mallory");
    let (status, reason) = answer(&raw(&front.server, &mallory, wish).await);
    assert!(status == 403 && reason.contains("WebSocket"), "{reason}");
    assert!(front.targets().is_empty());
    front.server.stop().await;
}

/// The server behind has agreed to speak WebSocket, and says nothing.
async fn silent_websocket(mut request: Request<Incoming>) -> Response<Body> {
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let _open = upgrade.await;
        std::future::pending::<()>().await;
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header("connection", "upgrade")
        .header("upgrade", "websocket")
        .body(text(""))
        .unwrap()
}

#[tokio::test]
async fn a_websocket_ends_with_the_action_that_its_path_needs() {
    let paths = "[[path]]\nprefix = \"/talk\"\naction = \"submit\"\n[[path]]\nprefix = \"/\"\n";
    let front = Ruled::start_with(paths, silent_websocket, |_| ());
    let ada = front.server.authority.user("ada");
    let mut open = Vec::new();
    for path in ["/talk", "/other"] {
        let wish = format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        );
        let mut stream = front.server.connect(&ada).await.unwrap();
        stream.write_all(wish.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"));
        open.push(stream);
    }
    // She may still connect.
    std::fs::write(&front.policy, POLICY.replace(", \"submit\"", "")).unwrap();
    assert!(front.server.handle.renew().await.faults.is_empty());
    let mut got = Vec::new();
    let ended = tokio::time::timeout(FOR_EVER, open[0].read_to_end(&mut got)).await;
    assert!(ended.is_ok());
    let line = lines(&front.trail, 3).await.pop().unwrap();
    assert_eq!(line["action"], "submit");
    assert_eq!(line["verdict"], "refused");
    tokio::select! {
        biased;
        _ = open[1].read_u8() => panic!("another rule is about it"),
        () = std::future::ready(()) => {}
    }
    drop(open);
    front.server.stop().await;
}

#[tokio::test]
async fn a_setting_keeps_refusals_inside_tls() {
    let front = Ruled::start(&format!("refusals = \"tls\"\n{PATHS}"));
    let mallory = front.server.authority.user("mallory");
    let refused = match front.server.connect(&mallory).await {
        Ok(mut stream) => stream.read_u8().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(refused.to_string().contains("alert"), "{refused}");
    assert_eq!(
        front
            .server
            .handle
            .metrics()
            .identities_refused(RefusalCause::Banned),
        1
    );
    front.server.stop().await;
}

/// Who shows the certificate of somebody else never gets as far as an answer, whether the rules know the name or not.
#[tokio::test]
async fn who_does_not_hold_the_key_is_told_nothing_over_http() {
    let front = Ruled::start(PATHS);
    let authority = &front.server.authority;
    let mut thief = authority.user("thief");
    for (count, name) in (1..).zip(["mallory", "ada"]) {
        thief.chain = authority.user(name).chain;
        let error = match front.server.connect(&thief).await {
            Ok(mut stream) => stream.read_u8().await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.to_string().contains("alert"), "{error}");
        let line = lines(&front.trail, count).await.pop().unwrap();
        assert!(
            line["reason"].as_str().unwrap().contains("holds the key"),
            "{line}"
        );
        assert!(line["subject"].is_null(), "{line}");
    }
    assert_eq!(
        front
            .server
            .handle
            .metrics()
            .identities_refused(RefusalCause::Key),
        2
    );
    front.server.stop().await;
}

#[tokio::test]
async fn a_faulty_chain_is_as_good_as_none_to_who_holds_its_key() {
    let front = Ruled::start(PATHS);
    let elsewhere = Authority::new();
    let eve = elsewhere.user("eve");
    assert_eq!(front.ask(&eve, "GET", "/health").await.0, 200);
    let (_, head) = front.behind.heads().pop().unwrap();
    assert_eq!(values(&head, "exoskel-anonymous"), ["?1"]);
    for name in ["exoskel-subject", "exoskel-actions", "client-cert"] {
        assert!(values(&head, name).is_empty(), "{name}");
    }
    let (status, reason) = front.ask(&eve, "GET", "/").await;
    assert!(
        status == 403 && reason.starts_with("your certificate"),
        "{reason}"
    );
    assert_eq!(front.behind.heads().len(), 1);
    let thief = Card {
        key: elsewhere.user("thief").key,
        ..eve
    };
    let error = match front.server.connect(&thief).await {
        Ok(mut stream) => stream.read_u8().await.unwrap_err(),
        Err(error) => error,
    };
    assert!(error.to_string().contains("alert"), "{error}");
    let mut said = lines(&front.trail, 3).await;
    said.extend(lines(&front.log, 2).await);
    for line in said {
        assert_ne!(line["verdict"], "accepted");
        assert!(line["subject"].is_null(), "{line}");
        assert!(
            line["claimed_subject"].as_str().unwrap().contains("eve"),
            "{line}"
        );
    }
    front.server.stop().await;
}

#[tokio::test]
async fn a_path_without_a_certificate_is_for_everybody_and_no_other_is() {
    let front = Ruled::start(PATHS);
    let server = &front.server;
    assert_eq!(
        ask_without_certificate(server, "/health").await.unwrap().0,
        200
    );
    let (status, reason) = ask_without_certificate(server, "/").await.unwrap();
    assert!(
        status == 403 && reason.contains("certificate"),
        "{status} {reason}"
    );
    for path in ["/health/../", "/HEALTH", "//health"] {
        assert_eq!(
            ask_without_certificate(server, path).await.unwrap().0,
            400,
            "{path}"
        );
    }
    let [(target, head)] = &front.behind.heads()[..] else {
        panic!()
    };
    assert_eq!(target, "/health");
    assert_eq!(values(head, "exoskel-anonymous"), ["?1"]);
    for name in ["exoskel-subject", "client-cert", "exoskel-actions"] {
        assert!(values(head, name).is_empty(), "{name}");
    }
    let line = lines(&front.trail, 1).await.pop().unwrap();
    assert_eq!(line["verdict"], "refused");
    assert_eq!(
        server
            .handle
            .metrics()
            .handshakes(HandshakeOutcome::WithoutCertificate),
        5
    );
    front.server.stop().await;
    // Without such a rule, a client without a certificate does not get in at all.
    let strict = Ruled::start("");
    assert!(
        ask_without_certificate(&strict.server, "/health")
            .await
            .is_err()
    );
    strict.server.stop().await;
}

#[tokio::test]
async fn strangers_have_places_of_their_own() {
    let front = Ruled::start_with(PATHS, hello, |settings| settings.limits.strangers_max = 0);
    assert!(
        ask_without_certificate(&front.server, "/health")
            .await
            .is_err()
    );
    let ada = front.server.authority.user("ada");
    assert_eq!(front.ask(&ada, "GET", "/health").await.0, 200);
    assert_eq!(front.server.handle.metrics().refused(Refusal::Strangers), 1);
    front.server.stop().await;
}

#[tokio::test]
async fn one_host_leaves_half_of_the_places_to_strangers_of_others() {
    let front = Ruled::start_with(PATHS, hello, |settings| settings.limits.strangers_max = 3);
    let server = &front.server;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = connect_without_certificate(server, b"h2").await.unwrap();
        // The settings of the front: it has given the connection a place.
        stream.read_exact(&mut [0; 9]).await.unwrap();
        held.push(stream);
    }
    assert!(ask_without_certificate(server, "/health").await.is_err());
    assert_eq!(server.handle.metrics().refused(Refusal::Strangers), 1);
    drop(held);
    front.server.stop().await;
}

/// A client of HTTP/2 that never confirms that its connection ends, and one that never asks.
#[tokio::test]
async fn no_stranger_keeps_its_place_by_not_going() {
    let short = |settings: &mut Settings| {
        settings.limits.header_time = Duration::from_millis(200);
        settings.limits.body_time = Duration::from_millis(200);
    };
    let front = Ruled::start_with(PATHS, hello, short);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // GET https://a/health, by the static table of HPACK but for path and host.
    let request = b"\0\0\x0e\x01\x05\0\0\0\x01\x82\x87\x04\x07/health\x01\x01a";
    for asks in [true, false] {
        let mut stream = connect_without_certificate(&front.server, b"h2")
            .await
            .unwrap();
        stream.write_all(preface).await.unwrap();
        if asks {
            stream.write_all(request).await.unwrap();
        }
        let mut got = Vec::new();
        // Without the limits this waits for ever: nothing answers the front's PING.
        let ended = tokio::time::timeout(FOR_EVER, stream.read_to_end(&mut got)).await;
        assert!(ended.is_ok(), "asks: {asks}");
        assert_eq!(String::from_utf8_lossy(&got).contains("hello"), asks);
    }
    front.server.stop().await;
}

#[tokio::test]
async fn a_stranger_gets_one_answer_whatever_stands_behind_its_request() {
    let front = Ruled::start(PATHS);
    let mut stream = connect_without_certificate(&front.server, b"http/1.1")
        .await
        .unwrap();
    let request = "GET /jobs HTTP/1.1\r\nHost: a\r\n\r\n".repeat(3);
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    let _ = stream.read_to_end(&mut got).await;
    let got = String::from_utf8_lossy(&got);
    assert_eq!(got.matches("HTTP/1.1 403").count(), 1, "{got}");
    front.server.stop().await;
}

#[tokio::test]
async fn the_server_behind_learns_what_a_client_may_do() {
    let front = Ruled::start("");
    let ada = front.server.authority.user("ada");
    let forged = b"GET / HTTP/1.1\r\nHost: a\r\nExoskel-Account: root\r\nExoskel-Actions: \"any\"\r\nExoskel-Anonymous: ?1\r\n\r\n";
    let mut stream = front.server.connect(&ada).await.unwrap();
    for (policy, actions) in [
        (POLICY.to_owned(), "\"connect\", \"submit\""),
        (
            format!(
                "{POLICY}[[allow.rule]]\naction = \"any\"\ndn = \"*\"\n[[deny.rule]]\naction = \"submit\"\ndn = \"/O=Grid/*\"\n"
            ),
            "\"any\"",
        ),
    ] {
        std::fs::write(&front.policy, policy).unwrap();
        front.server.handle.renew_rules().await;
        stream.write_all(forged).await.unwrap();
        let mut got = Vec::new();
        while !got.ends_with(b"hello") {
            got.push(stream.read_u8().await.unwrap());
        }
        assert!(got.starts_with(b"HTTP/1.1 200"));
        // The same connection: headers follow the rules.
        let (_, head) = front.behind.heads().pop().unwrap();
        assert_eq!(values(&head, "exoskel-actions"), [actions]);
        assert!(values(&head, "exoskel-account").is_empty());
        assert!(values(&head, "exoskel-anonymous").is_empty());
    }
    drop(stream);
    front.server.stop().await;
}

#[tokio::test]
async fn each_request_has_a_line_in_the_access_log() {
    let behind = |request: Request<Incoming>| async move {
        let body = match request.uri().path() {
            "/long" => "x".repeat(100_000),
            _ => "hello".to_owned(),
        };
        Response::new(text(&body))
    };
    let front = Ruled::start_with(PATHS, behind, |_| ());
    let ada = front.server.authority.user("ada");
    front.ask(&ada, "GET", "/long?secret=1").await;
    front.ask(&ada, "GET", "/admin").await;
    front.ask(&ada, "GET", "/%0a%22").await;
    raw(&front.server, &ada, b"garbage\x1b[2J\r\n\r\n").await;
    ask_without_certificate(&front.server, "/health")
        .await
        .unwrap();
    let log = lines(&front.log, 5).await;
    let told: Vec<_> = log
        .iter()
        .map(|line| {
            let word = |key: &str| line[key].as_str().unwrap_or("-").to_owned();
            (
                word("method"),
                word("path"),
                line["status"].as_u64().unwrap(),
            )
        })
        .collect();
    let row = |method: &str, path: &str, status| (method.to_owned(), path.to_owned(), status);
    assert_eq!(
        told,
        [
            row("GET", "/long", 200),
            row("GET", "/admin", 403),
            row("GET", "/%0a%22", 400),
            row("", "", 400),
            row("GET", "/health", 200),
        ]
    );
    assert_eq!(log[0]["bytes"], 100_000);
    assert!(log[0]["milliseconds"].as_f64().unwrap() > 0.0);
    assert!(log[0]["subject"].as_str().unwrap().contains("ada"));
    assert!(
        log[0]["address"]
            .as_str()
            .unwrap()
            .starts_with("127.0.0.1:")
    );
    assert!(log[0]["time"].as_str().unwrap().ends_with('Z'));
    assert!(log[4]["subject"].is_null());
    // `logrotate` moves the file away, and SIGHUP opens a new one.
    let old = front.log.with_extension("1");
    std::fs::rename(&front.log, &old).unwrap();
    let hangup = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).unwrap();
    let handle = front.server.handle.clone();
    let keeper = tokio::spawn(async move {
        handle.keep_current(Duration::from_secs(3600), hangup).await;
    });
    let me = rustix::process::getpid();
    rustix::process::kill_process(me, rustix::process::Signal::HUP).unwrap();
    while !front.log.exists() {
        tokio::task::yield_now().await;
    }
    front.ask(&ada, "GET", "/").await;
    assert_eq!(lines(&front.log, 1).await[0]["path"], "/");
    assert_eq!(audited(&old).len(), 5);
    front.server.stop().await;
    keeper.await.unwrap();
}

#[tokio::test]
async fn a_load_balancer_says_where_clients_are_and_nobody_else_does() {
    let header = |address: [u8; 4]| {
        let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c".to_vec();
        header.extend(address);
        header.extend([10, 0, 0, 1, 0xc3, 0x50, 0x20, 0xfb]);
        header
    };
    let balanced = |settings: &mut Settings| {
        settings.balancers = vec!["127.0.0.1".parse::<Balancer>().unwrap()];
        settings.limits.connections_per_address_max = 1;
    };
    let front = Ruled::start_with("", hello, balanced);
    let ada = front.server.authority.user("ada");
    let dial = async |address: Option<[u8; 4]>| {
        let mut socket = TcpStream::connect(front.server.address).await.unwrap();
        if let Some(address) = address {
            socket.write_all(&header(address)).await.unwrap();
        }
        let config = front
            .server
            .client(&ada, &[b"http/1.1"], &[&rustls::version::TLS13]);
        peers::connect(config, socket).await
    };
    // Two at once from one balancer, as of two hosts; a third is the first host's second.
    let mut first = dial(Some([192, 0, 2, 7])).await.unwrap();
    let second = dial(Some([192, 0, 2, 8])).await.unwrap();
    assert!(dial(Some([192, 0, 2, 7])).await.is_err());
    assert!(dial(None).await.is_err(), "a balancer has to say it");
    first
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut got = Vec::new();
    let _ = first.read_to_end(&mut got).await;
    assert!(got.starts_with(b"HTTP/1.1 200"));
    let [(_, head)] = &front.behind.heads()[..] else {
        panic!()
    };
    assert_eq!(values(head, "x-forwarded-for"), ["192.0.2.7"]);
    let said = lines(&front.log, 1).await;
    assert_eq!(said[0]["address"], "192.0.2.7:50000");
    assert_eq!(
        lines(&front.trail, 1).await[0]["address"],
        "192.0.2.7:50000"
    );
    drop(second);
    front.server.stop().await;
    // From anybody else such a header is garbage.
    let elsewhere = |settings: &mut Settings| {
        settings.balancers = vec!["192.0.2.0/24".parse().unwrap()];
    };
    let front = Ruled::start_with("", hello, elsewhere);
    let ada = front.server.authority.user("ada");
    let mut socket = TcpStream::connect(front.server.address).await.unwrap();
    socket.write_all(&header([192, 0, 2, 7])).await.unwrap();
    let config = front.server.client(&ada, &[], &[&rustls::version::TLS13]);
    assert!(peers::connect(config, socket).await.is_err());
    assert_eq!(front.ask(&ada, "GET", "/").await.0, 200);
    front.server.stop().await;
}

#[tokio::test]
async fn a_renewal_says_what_has_changed() {
    let front = Ruled::start("");
    let handle = &front.server.handle;
    assert!(handle.renew_rules().await.changes.is_empty());
    // The server's own watch may see a change first, and say it.
    for more in 0.. {
        std::fs::write(&front.policy, format!("{POLICY}# {more}\n")).unwrap();
        let said = handle.renew().await.changes.join("\n");
        if said.contains("policy.toml has changed") {
            assert!(
                said.contains("the rules, bans and accounts in force are the same as before"),
                "{said}"
            );
            break;
        }
    }
    front.server.authority.host(front.server.scratch.path());
    let said = handle.renew().await.changes.join("\n");
    assert!(said.contains("hostcert.pem is new, ends "), "{said}");
    assert!(handle.renew().await.changes.is_empty());
    front.server.stop().await;
}

#[tokio::test]
async fn metrics_tell_when_the_host_certificate_ends() {
    let front = Ruled::start("");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let handle = front.server.handle.clone();
    let monitor = tokio::spawn(async move { handle.monitor(listener).await });
    let mallory = front.server.authority.user("mallory");
    front.ask(&mallory, "GET", "/").await;
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    let mut metrics = String::new();
    socket.read_to_string(&mut metrics).await.unwrap();
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(name));
        let value = line.unwrap_or_else(|| panic!("{name} is not in {metrics}"));
        value.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let end = value("exoskel_host_certificate_end_timestamp_seconds");
    let minutes = end.abs_diff(now.as_secs() + 30 * 86_400) / 60;
    assert!(minutes < 10, "{end}");
    assert_eq!(
        value("exoskel_identities_refused_total{reason=\"banned\"}"),
        1
    );
    assert_eq!(value("exoskel_access_lines_lost"), 0);
    front.server.stop().await;
    monitor.await.unwrap().unwrap();
}
