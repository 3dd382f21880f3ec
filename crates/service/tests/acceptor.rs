//! The acceptor through real TLS: who comes in, who doesn't, and what it costs the others.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    reason = "a test that can't go on says where"
)]

mod peers;

use std::io::ErrorKind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use exoskel_identity::{Expected, IdentityError, PeerVerifier, VerifiedIdentity};
use exoskel_service::{
    Audit, ConnectionEnd, Handler, HandshakeOutcome, LogTarget, Peer, Refusal, Renewable, Renewal,
    Rules, Stream,
};
use peers::{Authority, Card, HeldTime, Running, Scratch, audited, client_hello};
use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::advance;
use tokio_rustls::client::TlsStream;

const HOUR: Duration = Duration::from_secs(3600);

/// Answers with the client's name.
async fn name(mut stream: Stream, peer: Peer) {
    let _ = stream.write_all(peer.identity().name().as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// Takes a request, answers with many bytes, and is gone.
async fn flood_and_finish(mut stream: Stream, _peer: Peer) {
    let _ = stream.read(&mut [0; 16]).await;
    let _ = stream.finish(&vec![b'x'; 1 << 20]).await;
}

/// Sends back what comes, until the client is done.
async fn echo(mut stream: Stream, _peer: Peer) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if stream.write_all(&buffer[..count]).await.is_err() {
            break;
        }
    }
}

async fn name_of(server: &Running, card: &Card) -> String {
    let mut stream = server.connect(card).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Connects, and waits for the server's end of the handshake too: time that passes from now on is none of the handshake's.
async fn connect_whole(server: &Running, card: &Card) -> TlsStream<TcpStream> {
    let stream = server.connect(card).await.unwrap();
    while server.handle.open().1 > 0 {
        tokio::task::yield_now().await;
    }
    stream
}

/// What a client sees of a connection that the server doesn't want: it ends, with or without a reset.
async fn is_ended(mut socket: impl tokio::io::AsyncRead + Unpin) -> bool {
    let mut rest = Vec::new();
    match socket.read_to_end(&mut rest).await {
        Ok(_) => true,
        Err(error) => matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof | ErrorKind::InvalidData
        ),
    }
}

#[tokio::test]
async fn a_client_comes_in_with_either_version_of_tls() {
    let server = Running::start(name, |_| ());
    let card = server.authority.user("ada");
    for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
        let config = server.client(&card, &[], &[version]);
        let socket = TcpStream::connect(server.address).await.unwrap();
        let mut stream = peers::connect(config, socket).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "ada");
    }
    assert_eq!(
        server
            .handle
            .metrics()
            .handshakes(HandshakeOutcome::Accepted),
        2
    );
    server.stop().await;
}

#[tokio::test]
async fn the_last_bytes_arrive_whole_and_with_a_goodbye() {
    let server = Running::start(flood_and_finish, |_| ());
    let card = server.authority.user("ada");
    let mut stream = server.connect(&card).await.unwrap();
    stream.write_all(b"?").await.unwrap();
    let mut answer = Vec::new();
    // Without the goodbye this would be an error.
    stream.read_to_end(&mut answer).await.unwrap();
    assert_eq!(answer.len(), 1 << 20);
    server.stop().await;
}

#[tokio::test]
async fn refusals_are_told_to_the_client_and_written_down() {
    let scratch = Scratch::new();
    let trail = scratch.path().join("audit");
    let audit = Audit::open(&LogTarget::File(trail.clone())).unwrap();
    let server = Running::start_in(scratch, name, |settings| settings.audit = audit);
    let good = server.authority.user("ada");
    let stranger = Authority::new().user("mallory");
    let thief = Card {
        key: server.authority.user("thief").key,
        ..good.clone()
    };
    let nobody = Card {
        chain: Vec::new(),
        ..good.clone()
    };
    assert_eq!(name_of(&server, &good).await, "ada");
    let versions = [&rustls::version::TLS13, &rustls::version::TLS12];
    for (card, alert) in [
        (&stranger, "UnknownCA"),
        (&thief, "DecryptError"),
        (&nobody, ""),
    ] {
        for version in versions {
            let config = server.client(card, &[], &[version]);
            let socket = TcpStream::connect(server.address).await.unwrap();
            // In TLS 1.3 the client is done before the server has seen its certificate.
            let error = match peers::connect(config, socket).await {
                Ok(mut stream) => stream.read_to_end(&mut Vec::new()).await.unwrap_err(),
                Err(error) => error,
            };
            assert!(error.to_string().contains(alert), "{error}");
        }
    }
    assert_eq!(
        server
            .handle
            .metrics()
            .handshakes(HandshakeOutcome::Refused),
        6
    );
    let scratch = server.stop().await;
    let lines = audited(&trail);
    assert_eq!(lines.len(), 7);
    assert_eq!(lines[0]["verdict"], "accepted");
    assert_eq!(lines[0]["action"], "connect");
    for (line, reason) in [
        (1, "comes from"),
        (3, "did not prove"),
        (5, "sent no certificate"),
    ] {
        assert_eq!(lines[line]["verdict"], "refused");
        assert!(lines[line].get("subject").is_none());
        let got = lines[line]["reason"].as_str().unwrap();
        assert!(got.contains(reason), "{got}");
    }
    assert!(
        lines[1]["claimed_subject"]
            .as_str()
            .unwrap()
            .contains("mallory")
    );
    drop(scratch);
}

#[tokio::test]
async fn garbage_and_half_handshakes_cost_nobody_else_anything() {
    let server = Running::start(name, |_| ());
    let card = server.authority.user("ada");
    let garbage: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\n\r\n",
        &[0x16, 0x03, 0x01, 0xff, 0xff],
        &[0; 4096],
        &[0x16, 0x03, 0x01, 0x00, 0x05, 0x01, 0x00, 0x00, 0x01, 0x00],
    ];
    let mut held = Vec::new();
    for bytes in garbage {
        let mut socket = TcpStream::connect(server.address).await.unwrap();
        socket.write_all(bytes).await.unwrap();
        held.push(socket);
    }
    assert_eq!(name_of(&server, &card).await, "ada");
    drop(held);
    server.stop().await;
}

#[tokio::test]
async fn more_connections_of_one_address_are_reset_before_the_handshake() {
    let server = Running::start(echo, |settings| {
        settings.limits.connections_per_address_max = 2;
    });
    let card = server.authority.user("ada");
    let first = server.connect(&card).await.unwrap();
    let second = server.connect(&card).await.unwrap();
    assert!(server.connect(&card).await.is_err());
    assert_eq!(server.handle.metrics().refused(Refusal::Address), 1);
    drop((first, second));
    server.stop().await;
}

#[tokio::test]
async fn a_full_queue_of_handshakes_resets_newcomers() {
    let server = Running::start(name, |settings| settings.limits.handshakes_max = 1);
    let card = server.authority.user("ada");
    let silent = TcpStream::connect(server.address).await.unwrap();
    // The reset can be there before the client knows that it is connected.
    if let Ok(refused) = TcpStream::connect(server.address).await {
        assert!(is_ended(refused).await);
    }
    assert_eq!(server.handle.metrics().refused(Refusal::Handshakes), 1);
    drop(silent);
    while server.handle.open().0 > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(name_of(&server, &card).await, "ada");
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_old_handshake_makes_room_for_a_new_one() {
    let _held = HeldTime::new();
    let server = Running::start(name, |settings| settings.limits.handshakes_max = 1);
    let card = server.authority.user("ada");
    let silent = TcpStream::connect(server.address).await.unwrap();
    while server.handle.open().1 == 0 {
        tokio::task::yield_now().await;
    }
    advance(Duration::from_secs(3)).await;
    assert_eq!(name_of(&server, &card).await, "ada");
    assert_eq!(server.handle.metrics().ended(ConnectionEnd::Displaced), 1);
    assert!(is_ended(silent).await);
    server.stop().await;
}

#[tokio::test]
async fn a_client_that_waits_for_the_server_keeps_its_place() {
    let server = Running::start(name, |settings| {
        settings.limits.handshakes_max = 1;
        // Whoever is there is old enough to be displaced.
        settings.limits.handshake_time_assured = Duration::from_nanos(1);
    });
    // Both are there before the server's first task runs, so the second meets a first whose bytes are unread.
    let mut first = std::net::TcpStream::connect(server.address).unwrap();
    std::io::Write::write_all(&mut first, &client_hello()).unwrap();
    let second = std::net::TcpStream::connect(server.address).unwrap();
    for socket in [&first, &second] {
        socket.set_nonblocking(true).unwrap();
    }
    assert!(is_ended(TcpStream::from_std(second).unwrap()).await);
    assert_eq!(server.handle.metrics().refused(Refusal::Handshakes), 1);
    assert_eq!(server.handle.metrics().ended(ConnectionEnd::Displaced), 0);
    let mut first = TcpStream::from_std(first).unwrap();
    let handshake_record = 0x16;
    assert_eq!(first.read_u8().await.unwrap(), handshake_record);
    drop(first);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_stops_is_ended() {
    let _held = HeldTime::new();
    let server = Running::start(name, |_| ());
    let mut slow = TcpStream::connect(server.address).await.unwrap();
    // The head of a record whose body never comes.
    slow.write_all(&[0x16, 0x03, 0x01, 0x01]).await.unwrap();
    while server.handle.open().1 == 0 {
        tokio::task::yield_now().await;
    }
    advance(Duration::from_secs(11)).await;
    assert!(is_ended(slow).await);
    assert_eq!(server.handle.metrics().ended(ConnectionEnd::Handshake), 1);
    server.stop().await;
}

/// Trust data on a disk that doesn't answer.
struct Stuck {
    authority: Arc<Authority>,
    began: std::sync::mpsc::Sender<()>,
    answer: Mutex<std::sync::mpsc::Receiver<()>>,
}

impl PeerVerifier for Stuck {
    fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
        expected: &Expected<'_>,
    ) -> Result<VerifiedIdentity, IdentityError> {
        self.authority.verify(chain, now, expected)
    }

    fn generation(&self) -> u64 {
        self.authority.generation()
    }
}

impl Renewable for Stuck {
    fn renew(&self) -> Renewal {
        self.began.send(()).unwrap();
        assert!(self.answer.lock().unwrap().recv().is_err());
        Renewal::default()
    }
}

#[tokio::test(start_paused = true)]
async fn slow_clients_are_ended_while_trust_data_does_not_come() {
    let _held = HeldTime::new();
    let scratch = Scratch::new();
    let policy = scratch.path().join("policy.toml");
    std::fs::write(
        &policy,
        "[[allow.rule]]\naction = \"connect\"\ndn = \"*\"\n",
    )
    .unwrap();
    let (began, has_begun) = std::sync::mpsc::channel();
    let (release, answer) = std::sync::mpsc::channel();
    let server = Running::start_in(scratch, name, |settings| {
        settings.rules = Some(Rules::open(&policy).unwrap());
        settings.verifier = Arc::new(Stuck {
            authority: Authority::new(),
            began,
            answer: answer.into(),
        });
    });
    let handle = server.handle.clone();
    let renewal = tokio::spawn(async move { handle.renew().await });
    while has_begun.try_recv().is_err() {
        tokio::task::yield_now().await;
    }
    for _ in 0..2 {
        let mut slow = TcpStream::connect(server.address).await.unwrap();
        slow.write_all(&[0x16, 0x03, 0x01, 0x01]).await.unwrap();
        while server.handle.open().1 == 0 {
            tokio::task::yield_now().await;
        }
        advance(Duration::from_secs(11)).await;
        assert!(is_ended(slow).await);
    }
    drop(release);
    assert!(!renewal.await.unwrap().changed);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_ended_and_a_working_one_is_not() {
    let _held = HeldTime::new();
    let working = |mut stream: Stream, peer: Peer| async move {
        let guard = peer.working();
        let mut asked = [0];
        stream.read_exact(&mut asked).await.unwrap();
        tokio::time::sleep(HOUR).await;
        stream.write_all(b"done").await.unwrap();
        drop(guard);
        let _ = stream.read(&mut [0]).await;
    };
    let server = Running::start(working, |_| ());
    let card = server.authority.user("ada");
    let mut stream = connect_whole(&server, &card).await;
    stream.write_all(b"?").await.unwrap();
    let mut answer = [0; 4];
    let mut read = std::pin::pin!(stream.read_exact(&mut answer));
    loop {
        tokio::select! {
            biased;
            result = &mut read => break result.map(drop).unwrap(),
            () = advance(Duration::from_secs(60)) => {}
        }
    }
    assert_eq!(&answer, b"done");
    advance(Duration::from_secs(121)).await;
    assert!(is_ended(stream).await);
    assert_eq!(server.handle.metrics().ended(ConnectionEnd::Idle), 1);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_takes_nothing_is_ended() {
    let _held = HeldTime::new();
    let flood = |mut stream: Stream, _peer: Peer| async move {
        let block = vec![0; 1 << 20];
        while stream.write_all(&block).await.is_ok() {}
    };
    let server = Running::start(flood, |_| ());
    let card = server.authority.user("ada");
    let stream = connect_whole(&server, &card).await;
    while server.handle.metrics().ended(ConnectionEnd::Slow) == 0 {
        advance(Duration::from_secs(1)).await;
        tokio::task::yield_now().await;
    }
    drop(stream);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_costs_one_connection() {
    struct Fragile(AtomicUsize);
    impl Handler for Fragile {
        const PROTOCOLS: &'static [&'static [u8]] = &[];

        async fn handle(&self, stream: Stream, peer: Peer) {
            assert!(
                self.0.fetch_add(1, Ordering::SeqCst) != 1,
                "as the test wants it"
            );
            name(stream, peer).await;
        }
    }
    let server = Running::start(Fragile(AtomicUsize::new(0)), |_| ());
    let card = server.authority.user("ada");
    let verdicts = Arc::new(AtomicUsize::new(0));
    let counted = verdicts.clone();
    *server.authority.watcher.write().unwrap() = Some(Box::new(move || {
        assert!(
            counted.fetch_add(1, Ordering::SeqCst) != 0,
            "as the test wants it"
        );
    }));
    // The first one panics in its verification, the third in its handler.
    let first = server.connect(&card).await;
    assert!(match first {
        Ok(stream) => is_ended(stream).await,
        Err(_) => true,
    });
    assert_eq!(name_of(&server, &card).await, "ada");
    assert!(is_ended(server.connect(&card).await.unwrap()).await);
    assert_eq!(name_of(&server, &card).await, "ada");
    assert_eq!(server.handle.metrics().panics(), 2);
    server.stop().await;
}

/// Neither is done before the other one has begun, so judging them one after the other would never end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_chains_are_judged_at_once() {
    let server = Running::start(name, |_| ());
    let (began, both) = (Mutex::new(0), Condvar::new());
    *server.authority.watcher.write().unwrap() = Some(Box::new(move || {
        let mut began = began.lock().unwrap();
        *began += 1;
        both.notify_all();
        let patience = Duration::from_secs(60);
        let waited = both.wait_timeout_while(began, patience, |began| *began < 2);
        assert!(!waited.unwrap().1.timed_out(), "the other one never began");
    }));
    let cards = ["ada", "bob"].map(|name| server.authority.user(name));
    // Both are accepted before either shows its chain.
    let mut sockets = Vec::new();
    for _ in &cards {
        sockets.push(TcpStream::connect(server.address).await.unwrap());
    }
    while server.handle.open().1 < cards.len() {
        tokio::task::yield_now().await;
    }
    let answered = cards.iter().zip(sockets).map(|(card, socket)| {
        let config = server.client(card, &[], &[&rustls::version::TLS13]);
        tokio::spawn(async move {
            let mut answer = String::new();
            let mut stream = peers::connect(config, socket).await?;
            stream.read_to_string(&mut answer).await.map(|_| answer)
        })
    });
    let answered: Vec<_> = answered.collect();
    for (task, name) in answered.into_iter().zip(["ada", "bob"]) {
        assert_eq!(task.await.unwrap().unwrap(), name);
    }
    server.stop().await;
}

#[tokio::test]
async fn a_revoked_client_loses_its_open_connections_and_nobody_else_does() {
    let server = Running::start(echo, |_| ());
    let (ada, bob) = (server.authority.user("ada"), server.authority.user("bob"));
    let mut streams = Vec::new();
    for card in [&ada, &ada, &bob] {
        let mut stream = server.connect(card).await.unwrap();
        stream.write_all(b"x").await.unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
        streams.push(stream);
    }
    server.authority.revoke(&ada);
    assert!(server.handle.renew().await.faults.is_empty());
    let mut kept = streams.pop().unwrap();
    for stream in streams {
        assert!(is_ended(stream).await);
    }
    kept.write_all(b"y").await.unwrap();
    kept.read_exact(&mut [0]).await.unwrap();
    assert_eq!(
        server.handle.metrics().ended(ConnectionEnd::NoLongerGood),
        2
    );
    let again = server.connect(&ada).await;
    assert!(match again {
        Ok(mut stream) => stream.read(&mut [0]).await.is_err(),
        Err(_) => true,
    });
    drop(kept);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_expired_client_loses_its_open_connection() {
    let _held = HeldTime::new();
    let server = Running::start(echo, |settings| {
        let late = peers::Calendar::default();
        settings.time = Arc::new(late);
        settings.limits.idle_time = Duration::from_secs(u64::from(u32::MAX));
    });
    let card = server.authority.user("ada");
    let mut stream = server.connect(&card).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    // The certificate is good for thirty days.
    advance(HOUR * 24 * 31).await;
    assert!(is_ended(stream).await);
    assert_eq!(server.handle.metrics().ended(ConnectionEnd::Expired), 1);
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stopping_waits_for_connections_and_then_ends_them() {
    let _held = HeldTime::new();
    let server = Running::start(echo, |_| ());
    let card = server.authority.user("ada");
    let mut stream = server.connect(&card).await.unwrap();
    stream.write_all(b"x").await.unwrap();
    stream.read_exact(&mut [0]).await.unwrap();
    let handle = server.handle.clone();
    let time = async {
        while handle.open().0 > 0 {
            advance(Duration::from_secs(5)).await;
            tokio::task::yield_now().await;
        }
    };
    tokio::join!(server.stop(), time);
    assert_eq!(handle.metrics().ended(ConnectionEnd::Shutdown), 1);
    assert!(is_ended(stream).await);
}

/// Answers with the client's address.
async fn address(mut stream: Stream, peer: Peer) {
    let address = peer.address().ip().to_string();
    let _ = stream.write_all(address.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// A socket that listens for both kinds of addresses gets those of IPv4 in the form of IPv6. Nobody searches an audit so.
#[tokio::test]
async fn a_client_over_ipv4_has_an_address_of_ipv4() {
    let scratch = Scratch::new();
    let trail = scratch.path().join("audit");
    let audit = Audit::open(&LogTarget::File(trail.clone())).unwrap();
    let mut server = Running::start_in(scratch, address, |settings| {
        settings.listen = "[::]:0".parse().unwrap();
        settings.audit = audit;
    });
    server.address.set_ip("127.0.0.1".parse().unwrap());
    let card = server.authority.user("ada");
    // The handler's answer is the address here.
    assert_eq!(name_of(&server, &card).await, "127.0.0.1");
    let _scratch = server.stop().await;
    let address = audited(&trail)[0]["address"].as_str().unwrap().to_owned();
    assert!(address.starts_with("127.0.0.1"), "{address}");
}
