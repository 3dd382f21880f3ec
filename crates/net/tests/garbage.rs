//! Peers that never get as far as a certificate: other protocols, noise, silence, and too much of everything.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::Role;
use exoskel_net::establish::{EstablishError, dial, welcome};
use exoskel_net::tls::{Handshake, Tls, TlsError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use wire::raw::{RawClient, stranger};
use wire::relay::{Direction, Relay};
use wire::{End, Site, anybody, part, run, soon, text};

/// Sends `bytes` to a server and keeps the connection open; what the server makes of it.
async fn welcomed(bytes: Vec<u8>) -> EstablishError {
    let server = Site::new().worker("lab1");
    let (mut stream, socket) = stranger().await;
    let sent = async {
        // The server may hang up in the middle of it.
        let _ = stream.write_all(&bytes).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
    };
    let both = async { tokio::join!(sent, welcome(socket, &server, anybody)) };
    let (_, outcome) = soon("the end of the connection", both).await;
    let Err(error) = outcome else {
        panic!("accepted");
    };
    error
}

#[test]
fn other_protocols_are_told_from_tls() {
    run(async {
        let http = b"GET / HTTP/1.1\r\nHost: lab1\r\n\r\n".to_vec();
        assert!(matches!(welcomed(http).await, EstablishError::NotTls));
        let ssh = b"SSH-2.0-OpenSSH_9.2p1\r\n".to_vec();
        assert!(matches!(welcomed(ssh).await, EstablishError::NotTls));
        // A session's own record, with no handshake before it.
        let mut record = vec![1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8];
        record.extend([0; 24]);
        assert!(matches!(welcomed(record).await, EstablishError::NotTls));
    });
}

#[test]
fn a_record_of_the_greatest_length_is_refused_before_it_comes() {
    run(async {
        let error = welcomed(vec![22, 3, 1, 0xff, 0xff]).await;
        assert!(matches!(error, EstablishError::NotTls), "{error}");
    });
}

#[test]
fn noise_in_the_form_of_tls_is_refused() {
    run(async {
        // Multiplicative noise: the same in each run, and of no form.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        for content in 20..=23 {
            let mut bytes = vec![content, 3, 3, 1, 0];
            for _ in 0..256 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                bytes.push((state >> 56) as u8);
            }
            let error = welcomed(bytes).await;
            assert!(matches!(error, EstablishError::Tls(_)), "{error}");
        }
    });
}

#[test]
fn nobody_sends_without_end_before_being_verified() {
    run(async {
        // A ClientHello of 16 MiB, as its length says, in records as large as they may be.
        let mut bytes = Vec::new();
        for number in 0..64 {
            bytes.extend([22, 3, 1, 0x40, 0]);
            let start = bytes.len();
            bytes.resize(start + 0x4000, 0);
            if number == 0 {
                bytes[start..start + 4].copy_from_slice(&[1, 0xff, 0xff, 0xff]);
            }
        }
        let error = welcomed(bytes).await;
        assert!(
            matches!(error, EstablishError::Tls(_) | EstablishError::TooMuch),
            "{error}"
        );
    });
}

#[test]
fn a_verified_peer_cannot_put_off_its_hello_for_ever() {
    run(async {
        let site = Site::new();
        let (stream, socket) = stranger().await;
        let credential = site.credential(Role::Manager, "head");
        let client = async {
            let mut raw = RawClient::connect(stream, &credential, Role::Worker).await;
            // TLS is done. Nothing more comes; the server hangs up.
            assert!(raw.receive().await.is_err());
        };
        // Its time is the usual one: TLS has to come to its end before.
        let server = site.worker("lab1");
        let both = async { tokio::join!(client, welcome(socket, &server, anybody)) };
        let (_, outcome) = soon("the end of the handshake's time", both).await;
        assert!(matches!(outcome, Err(EstablishError::Silent(_))));
    });
}

/// What a server's engine has of a client that says `hellos` together with the last flight of its handshake.
fn said_with_the_last_flight(hellos: &[&[u8]]) -> Result<Option<Vec<u8>>, TlsError> {
    let site = Site::new();
    let engine = |own, name, is_client, peer| {
        let credential = site.credential(own, name);
        let verifier = Arc::new(credential.authority(1).unwrap());
        if is_client {
            Tls::client(&credential, verifier, vec![peer], None)
        } else {
            Tls::server(&credential, verifier, vec![peer])
        }
    };
    let mut client = engine(Role::Manager, "head", true, Role::Worker)?;
    let mut server = engine(Role::Worker, "lab1", false, Role::Manager)?;
    while !client.is_complete() {
        hand_over(&mut client, &mut server)?;
        hand_over(&mut server, &mut client)?;
    }
    hellos.iter().try_for_each(|hello| client.send(hello))?;
    hand_over(&mut client, &mut server)?;
    server.take_plaintext()
}

/// Gives what one end has to send to the other, record by record.
fn hand_over(from: &mut Tls, to: &mut Tls) -> Result<(), TlsError> {
    let mut bytes = Vec::new();
    from.take_outgoing(&mut bytes);
    while bytes.len() >= 5 {
        let length = usize::from(u16::from_be_bytes([bytes[3], bytes[4]]));
        let behind = bytes.split_off(5 + length);
        to.receive(&bytes)?;
        bytes = behind;
    }
    Ok(())
}

#[test]
fn two_records_never_pass_for_one() {
    let one = said_with_the_last_flight(&[b"hello"]).unwrap();
    assert_eq!(one.as_deref(), Some(&b"hello"[..]));
    let two = said_with_the_last_flight(&[b"hello", b"again"]);
    assert!(matches!(two, Err(TlsError::TooMuch)), "{two:?}");
}

#[test]
fn a_silent_client_is_dropped_after_the_time_set() {
    run(async {
        let mut server = Site::new().worker("lab1");
        server.handshake_time = Duration::from_millis(200);
        let (mut stream, socket) = stranger().await;
        let said = text(
            soon(
                "the end of the handshake's time",
                welcome(socket, &server, anybody),
            )
            .await,
        );
        assert!(said.contains("no handshake within 200ms"), "{said}");
        assert_eq!(stream.read(&mut [0; 16]).await.unwrap(), 0);
    });
}

#[test]
fn a_silent_server_is_given_up_after_the_time_set() {
    run(async {
        let mut client = Site::new().manager();
        client.handshake_time = Duration::from_millis(200);
        let (silent, socket) = stranger().await;
        let said = text(
            soon(
                "the end of the handshake's time",
                dial(socket, &client, None),
            )
            .await,
        );
        assert!(said.contains("no handshake within 200ms"), "{said}");
        drop(silent);
    });
}

#[test]
fn a_slow_handshake_has_no_more_time_than_a_silent_one() {
    run(async {
        let site = Site::new();
        let mut server = site.worker("lab1");
        server.handshake_time = Duration::from_millis(300);
        let (mut stream, socket) = stranger().await;
        // One byte at a time, each a sign of life, of a record that never ends.
        let slow = async {
            stream.write_all(&[22, 3, 1, 0x10, 0]).await.unwrap();
            let mut pace = tokio::time::interval(Duration::from_millis(20));
            loop {
                pace.tick().await;
                if stream.write_all(&[0]).await.is_err() {
                    return;
                }
            }
        };
        let both = async { tokio::join!(slow, welcome(socket, &server, anybody)) };
        let (_, outcome) = soon("the end of the handshake's time", both).await;
        assert!(matches!(outcome, Err(EstablishError::Silent(_))));
    });
}

#[test]
fn who_answers_no_tls_is_no_exoskel_process() {
    run(async {
        let client = Site::new().manager();
        let (mut stream, socket) = stranger().await;
        stream
            .write_all(b"220 mail.example.org ESMTP\r\n")
            .await
            .unwrap();
        let said = text(soon("the end", dial(socket, &client, None)).await);
        assert!(said.contains("isn't an exoskel process"), "{said}");
    });
}

#[test]
fn a_client_that_hangs_up_leaves_an_error() {
    run(async {
        let server = Site::new().worker("lab1");
        let (stream, socket) = stranger().await;
        drop(stream);
        let said = text(soon("the end", welcome(socket, &server, anybody)).await);
        assert!(
            said.contains("the connection broke during the handshake"),
            "{said}"
        );
    });
}

/// The server's answer, its links and its first messages come with one read: the TLS engine must not get what is the
/// session's.
#[test]
fn the_last_bytes_of_tls_and_our_first_ones_come_together() {
    run(async {
        let site = Site::new();
        let (manager, worker) = (site.manager(), site.worker("lab1"));
        let (mut relay, (client, server)) = Relay::tcp().await;
        relay.hold_the_answer();
        let dialled = tokio::spawn(async move { dial(client, &manager, None).await });
        let server = soon("the welcome", welcome(server, &worker, anybody)).await;
        let server = End::serve(server.unwrap());
        let link = server.open();
        server.post(link, b"first", &[]).unwrap();
        server.post(link, b"second", &[7; 100_000]).unwrap();
        relay.holds_more_than(Direction::ToClient, 100_000).await;
        assert!(!dialled.is_finished());
        relay.release();
        let client = soon("the dialling", dialled).await.unwrap();
        let mut client = End::serve(client.unwrap());
        assert_eq!(client.message().await.0, b"first");
        assert_eq!(
            client.message().await,
            (b"second".to_vec(), vec![7; 100_000])
        );
        part(client, server).await;
    });
}
