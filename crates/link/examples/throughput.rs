//! What the record layer costs without a network: two sessions in memory, one thread.
//!
//! `cargo run --release -p exoskel-link --example throughput`. The link benchmarks over sockets stand in `benches/`.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measurement, not the sans-IO library: it reads a clock and prints"
)]

use core::time::Duration;
use std::time::Instant;

use bytes::Bytes;
use exoskel_link::keys::KeyStore;
use exoskel_link::{
    Endpoint, Event, LinkId, Message, MessageKind, Protection, Protections, Session, SessionConfig,
    SessionSecret, Side, TrafficClass,
};

fn main() {
    println!(
        "{:<10} {:>14} {:>14} {:>14}",
        "protection", "64 B ns", "64 KiB GB/s", "1 MiB GB/s"
    );
    for protection in Protection::ALL {
        let small = best_of(5, || message_time(protection, 64, 0, 200_000));
        let [middle, large] = [(64 << 10, 20_000), (1 << 20, 2_000)].map(|(bytes, count)| {
            let time = best_of(5, || message_time(protection, 0, bytes, count));
            bytes as f64 / time.as_nanos() as f64
        });
        println!(
            "{protection:<10} {:>14} {middle:>14.2} {large:>14.2}",
            small.as_nanos()
        );
    }
}

fn best_of(rounds: usize, measure: impl FnMut() -> Duration) -> Duration {
    core::iter::repeat_with(measure).take(rounds).min().unwrap()
}

/// The time that one message takes from `send` to its event, through both sessions and one copy for the wire.
fn message_time(protection: Protection, head: usize, bulk: usize, count: u32) -> Duration {
    let session = |side| {
        let mut config = SessionConfig::new(side);
        config.protections = Protections::all(protection);
        Session::new(
            config,
            SessionSecret::from_bytes(&[1; 32]),
            &KeyStore::in_ordinary_memory(1),
            Duration::ZERO,
        )
    };
    let (mut client, mut server) = (session(Side::Client), session(Side::Server));
    server.offer(Endpoint::new("sink", &["only"])).unwrap();
    let link = client.open_link("sink", TrafficClass::Data).unwrap();
    let message = Message {
        handler: 0,
        kind: MessageKind::Post,
        head: Bytes::from(vec![1; head]),
        bulk: if bulk > 0 {
            vec![Bytes::from(vec![2; bulk])]
        } else {
            vec![]
        },
        is_gathered: false,
    };
    // Small messages leave together, as they do when a socket is busy.
    let batch = if bulk > 0 { 1 } else { 100 };
    let mut left = count;
    let start = Instant::now();
    while left > 0 {
        for _ in 0..batch {
            client.send(link, message.clone()).unwrap();
        }
        pass(&mut client, &mut server);
        left -= take(&mut server);
        pass(&mut server, &mut client);
        while client.poll_event().is_some() {}
    }
    start.elapsed() / count
}

/// Copies what one session would write to where the other reads it, as the kernel would.
fn pass(from: &mut Session, to: &mut Session) {
    loop {
        from.prepare(Duration::ZERO).unwrap();
        let mut sent = 0;
        for slice in from.outgoing() {
            let mut rest = slice;
            while !rest.is_empty() {
                let room = to.receive_buffer();
                let count = room.len().min(rest.len());
                room[..count].copy_from_slice(&rest[..count]);
                to.received(count, Duration::ZERO).unwrap();
                rest = &rest[count..];
            }
            sent += slice.len();
        }
        if sent == 0 {
            return;
        }
        from.sent(sent);
    }
}

fn take(session: &mut Session) -> u32 {
    let mut done: Vec<(LinkId, u64)> = Vec::new();
    while let Some(event) = session.poll_event() {
        if let Event::Message {
            link, size, bulk, ..
        } = event
        {
            bulk.into_iter().for_each(|buffer| session.recycle(buffer));
            done.push((link, size));
        }
    }
    for &(link, size) in &done {
        session.consumed(link, size);
    }
    done.len() as u32
}
