//! An axum application behind the door: who asks, and what they may.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use axum::routing::get;
use axum::{Extension, Router};
use exoskel_identity::VerifiedIdentity;
use exoskel_service::{Audit, Http, LogTarget, Peer, Require, Rules, Stream};
use peers::{Card, Running, Scratch, audited, raw};

async fn name(Extension(identity): Extension<VerifiedIdentity>) -> String {
    identity.name().to_owned()
}

async fn get_path(server: &Running, card: &Card, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    raw(server, card, request.as_bytes()).await
}

#[tokio::test]
async fn requests_carry_who_asks_and_rules_decide() {
    let scratch = Scratch::new();
    let policy = scratch.path().join("policy.toml");
    std::fs::write(
        &policy,
        "[[allow.rule]]\naction = \"submit\"\ndn = \"/CN=nobody\"\n",
    )
    .unwrap();
    let rules = Rules::open(&policy).unwrap();
    let trail = scratch.path().join("audit");
    let audit = Audit::open(&LogTarget::File(trail.clone())).unwrap();
    let application = Router::new()
        .route("/", get(name))
        .merge(
            Router::new()
                .route("/submit", get(name))
                .layer(Require::action(rules, "submit")),
        )
        .merge(
            Router::new()
                .route("/production", get(name))
                .layer(Require::fqan("/vo/Role=production").unwrap()),
        );
    let server = Running::start_in(scratch, Http::new(application), |settings| {
        settings.audit = audit;
    });
    let card = server.authority.user("ada");
    let answer = get_path(&server, &card, "/").await;
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.ends_with("ada"),
        "{answer}"
    );
    let answer = get_path(&server, &card, "/submit").await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(answer.contains("submit"), "{answer}");
    let answer = get_path(&server, &card, "/production").await;
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(
        answer.contains("/vo/Role=production is required"),
        "{answer}"
    );
    let scratch = server.stop().await;
    let lines = audited(&trail);
    let actions: Vec<&str> = lines
        .iter()
        .map(|line| line["action"].as_str().unwrap())
        .collect();
    assert_eq!(
        actions,
        [
            "connect",
            "connect",
            "submit",
            "connect",
            "require /vo/Role=production"
        ]
    );
    drop(scratch);
}

#[tokio::test]
async fn a_handler_asks_what_a_peer_may_do() {
    async fn tell(stream: Stream, peer: Peer) {
        let (read, submit) = (peer.decide("read"), peer.decide("submit"));
        let account = peer.account();
        let said = format!("{} {} {account:?}", read.allowed, submit.allowed);
        let _ = stream.finish(said.as_bytes()).await;
    }
    let scratch = Scratch::new();
    let policy = scratch.path().join("policy.toml");
    std::fs::write(
        &policy,
        "[[allow.rule]]\naction = [\"connect\", \"read\"]\ndn = \"*\"\n",
    )
    .unwrap();
    let rules = Rules::open(&policy).unwrap();
    let server = Running::start_in(scratch, tell, |settings| settings.rules = Some(rules));
    let said = raw(&server, &server.authority.user("ada"), b"").await;
    assert_eq!(said, "true false None");
    server.stop().await;
    // Without a policy everybody may connect, and nobody may do anything else.
    let server = Running::start(tell, |_| ());
    let said = raw(&server, &server.authority.user("ada"), b"").await;
    assert_eq!(said, "false false None");
    server.stop().await;
}

#[tokio::test]
async fn without_an_identity_nobody_passes() {
    use tower_layer::Layer as _;
    use tower_service::Service as _;
    let router = Router::new().route("/", get(|| async { "in" }));
    let mut guarded = Require::vo("vo").layer(router);
    let request = http::Request::get("/")
        .body(axum::body::Body::empty())
        .unwrap();
    let response = guarded.call(request).await.unwrap();
    assert_eq!(response.status(), http::StatusCode::FORBIDDEN);
}
