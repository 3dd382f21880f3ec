//! Bodies of HTTP/2 requests that have their answer: the answer arrives, and nobody holds anything by going on.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::time::Duration;

use bytes::Bytes;
use exoskel_service::{Configuration, Front};
use http::{Request, StatusCode};
use http_body_util::BodyExt as _;
use hyper::client::conn::http2;
use peers::behind::{Behind, Body};
use peers::fronts::{Parts, hello, http2_client};
use peers::{HeldTime, Running, Scratch};
use tokio::sync::mpsc;
use tokio::time::advance;

/// Bytes of a rest that are read at most, and what may be on its way beside them.
const READ_MAX: usize = 8 << 20;
const ON_ITS_WAY_MAX: usize = 4 << 20;

/// Rests of one connection that are read at once.
const OF_CONNECTION_MAX: usize = 16;

/// A front that refuses every request, and the server behind it.
fn refusing() -> (Behind, Running) {
    let scratch = Scratch::new();
    let behind = Behind::start(&scratch, hello);
    let text = format!(
        "listen = \"127.0.0.1:0\"\n[upstream]\naddress = \"unix:{}\"\n[[path]]\nprefix = \"/nothing\"\n",
        scratch.path().join("app.sock").display()
    );
    let front = Front::new(Configuration::parse(&text).unwrap().front().unwrap());
    (behind, Running::start_in(scratch, front, |_| ()))
}

/// Sends a request whose body has begun, and reads the refusal to its end. The body can go on by what is returned.
async fn refused(sender: &mut http2::SendRequest<Body>) -> mpsc::Sender<Bytes> {
    let (parts, received) = mpsc::channel(1);
    let body = Parts(received).boxed_unsync();
    let request = Request::put("https://a/upload").body(body).unwrap();
    sender.ready().await.unwrap();
    let answer = sender.send_request(request);
    parts.send(Bytes::from_static(b"one")).await.unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), StatusCode::FORBIDDEN);
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    assert!(text.starts_with(b"no path rule"), "{text:?}");
    parts
}

#[tokio::test(start_paused = true)]
async fn a_client_may_end_its_body_after_its_refusal_and_not_for_ever() {
    let _held = HeldTime::new();
    let (behind, server) = refusing();
    let card = server.authority.user("ada");
    let (mut sender, driver) = http2_client(&server, &card).await;
    let ends = refused(&mut sender).await;
    // No time passes, so nothing is reset: the body can be sent to its end.
    ends.send(Bytes::from_static(b"two")).await.unwrap();
    drop(ends);
    let goes_on = refused(&mut sender).await;
    assert!(!goes_on.is_closed());
    while !goes_on.is_closed() {
        advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    // The connection is as good as before.
    refused(&mut sender).await;
    assert!(behind.heads().is_empty());
    drop(sender);
    driver.await.unwrap().unwrap();
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_large_rest_is_not_read_to_its_end() {
    let _held = HeldTime::new();
    let (_behind, server) = refusing();
    let card = server.authority.user("ada");
    let (mut sender, _driver) = http2_client(&server, &card).await;
    let goes_on = refused(&mut sender).await;
    let part = Bytes::from(vec![0; 64 << 10]);
    let mut sent = 0;
    while goes_on.send(part.clone()).await.is_ok() {
        sent += part.len();
        assert!(sent < READ_MAX + ON_ITS_WAY_MAX);
    }
    assert!(sent >= READ_MAX / 2, "{sent}");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_connection_has_few_rests_at_once() {
    let _held = HeldTime::new();
    let (_behind, server) = refusing();
    let card = server.authority.user("ada");
    let (mut sender, driver) = http2_client(&server, &card).await;
    let mut held = Vec::new();
    for _ in 0..OF_CONNECTION_MAX {
        held.push(refused(&mut sender).await);
    }
    // One more has its answer too, and is reset.
    refused(&mut sender).await.closed().await;
    assert!(held.iter().all(|one| !one.is_closed()));
    // A place that is left is for others.
    drop(held.pop());
    loop {
        let next = refused(&mut sender).await;
        // The front may not have read the end of the one that left.
        if next.send(Bytes::from_static(b"two")).await.is_ok() && !next.is_closed() {
            break;
        }
    }
    // A server that stops waits for all of them, and no time passes here.
    drop((held, sender));
    driver.await.unwrap().unwrap();
    server.stop().await;
}
