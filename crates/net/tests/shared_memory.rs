//! Sessions through shared memory: who gets one, what it carries, how it ends, and who stands in its way.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test that cannot go on has failed"
)]

mod wire;

use std::fs::read_link;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use exoskel_link::{CloseReason, Endpoint, Event, Protection, Session, SessionError, TrafficClass};
use exoskel_net::address::Address;
use exoskel_net::connection::{Connection, Ended};
use exoskel_net::establish::{EstablishError, Established, NodeConfig, SharedMemoryError};
use exoskel_net::listening::Listening;
use exoskel_net::socket::Socket;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use wire::folder::Folder;
use wire::relay::Relay;
use wire::{ENDPOINT, End, Site, Way, meet, message, part, run, socketpair, soon, tcp, unix};

/// Longer than any test.
const FOR_EVER: Duration = Duration::from_secs(3600);

fn willing(config: NodeConfig) -> NodeConfig {
    NodeConfig {
        shared_memory: true,
        // No heartbeat helps a wake-up that is lost.
        dead_after: FOR_EVER,
        ..config
    }
}

fn kind(end: Result<Established, EstablishError>) -> &'static str {
    end.unwrap().connection.transport().kind()
}

#[test]
fn both_have_to_be_willing_and_on_one_host() {
    run(async {
        let site = Site::new();
        let folder = Folder::new();
        let listening = Listening::bind(&Address::Unix(folder.0.join("x.sock"))).unwrap();
        let with = |config, shared_memory| NodeConfig {
            shared_memory,
            ..config
        };
        for (one, other) in [(true, true), (true, false), (false, true), (false, false)] {
            let client = with(site.manager(), one);
            let server = with(site.worker("lab1"), other);
            let through = one && other;
            for (sockets, without) in [
                (socketpair(), "socketpair"),
                (unix(&listening).await, "unix"),
            ] {
                let (client, server) = meet(sockets, &client, None, &server).await;
                let expected = if through { "shared memory" } else { without };
                assert_eq!((kind(client), kind(server)), (expected, expected));
            }
            let (client, server) = meet(tcp().await, &client, None, &server).await;
            assert_eq!((kind(client), kind(server)), ("tcp", "tcp"));
        }
    });
}

/// The kernel vouches for the relay at both ends, and for nobody behind it.
#[test]
fn there_is_none_through_a_relay_that_can_be_seen() {
    run(async {
        let site = Site::new();
        let folder = Folder::new();
        let listen = |name| Listening::bind(&Address::Unix(folder.0.join(name))).unwrap();
        let (_relay, sockets) = Relay::unix(&listen("relay.sock"), &listen("server.sock")).await;
        let (client, server) = (willing(site.manager()), willing(site.worker("lab1")));
        let (client, server) = meet(sockets, &client, None, &server).await;
        assert_eq!((kind(client), kind(server)), ("unix", "unix"));
    });
}

/// What a test says of itself, and what it says of where the peer is.
#[test]
fn the_peer_is_where_its_socket_is() {
    run(async {
        let site = Site::new();
        let folder = Folder::new();
        let path = folder.0.join("x.sock");
        let listening = Listening::bind(&Address::Unix(path.clone())).unwrap();
        let (client, server) = (willing(site.manager()), willing(site.worker("lab1")));
        let (client, _server) = meet(unix(&listening).await, &client, None, &server).await;
        let client = client.unwrap();
        let transport = client.connection.transport();
        assert_eq!(transport.unix_path(), Some(path));
        assert!(transport.peer_text().contains("process"));
        assert_eq!(transport.addresses(), None);
    });
}

#[test]
fn messages_of_all_sizes_pass_both_ways_at_a_time() {
    run(async {
        let site = Site::new();
        for way in Way::ALL {
            for data in [Protection::Plain, Protection::Encrypted] {
                let mut manager = site.manager();
                manager.minimum = data;
                let (mut client, mut server) = way.sessions(&manager, &site.worker("lab1")).await;
                let (forth, back) = (client.open(), server.open());
                // Around what fits into the rings and into a segment, and nothing at all.
                let sizes = [0, 1, 63, 4096, 262_144, 524_288, 524_289, 3_000_001];
                for (number, size) in sizes.into_iter().enumerate() {
                    let bulk: Vec<u8> = (0..size).map(|place| ((place * 31) >> 3) as u8).collect();
                    client.post(forth, &[number as u8], &bulk).unwrap();
                    server.post(back, &[number as u8], &bulk).unwrap();
                    let (of_client, of_server) = tokio::join!(server.message(), client.message());
                    for (head, got) in [of_client, of_server] {
                        assert_eq!(head, [number as u8]);
                        assert!(got == bulk, "{way:?} {data}: {size} bytes differ");
                    }
                }
                part(client, server).await;
            }
        }
    });
}

/// Thousands of small messages: both sides sleep and are woken again and again, the task as well as a thread that reads by itself.
#[test]
fn nobody_sleeps_through_a_message() {
    const COUNT: u32 = 2000;
    for way in Way::ALL {
        run(async {
            let site = Site::new();
            let (manager, worker) = (willing(site.manager()), willing(site.worker("lab1")));
            let (client, server) = way.meet(&manager, &worker).await;
            let (client, mut server) = (client.connection, End::serve(server));
            let answered = Arc::new(AtomicU32::new(0));
            let hear = hearing(&client, &answered);
            let asking = thread::spawn({
                let (client, answered) = (client.clone(), answered.clone());
                move || ask(&client, &answered, COUNT)
            });
            client
                .with(|session| session.offer(Endpoint::new(ENDPOINT, &["take"])))
                .unwrap();
            let served = client.clone();
            let ended = tokio::spawn(async move { served.run(hear).await });
            let back = server.open();
            for number in 0..COUNT {
                let (head, _) = server.message().await;
                assert_eq!(head, number.to_be_bytes());
                server.post(back, &head, &[]).unwrap();
            }
            let asked = tokio::task::spawn_blocking(move || asking.join());
            soon("the last answer", asked).await.unwrap().unwrap();
            client.close(CloseReason::Finished);
            server.ended().await;
            soon("the end", ended).await.unwrap();
        });
    }
}

/// Counts answers, whoever reads them.
fn hearing(client: &Arc<Connection>, answered: &Arc<AtomicU32>) -> impl FnMut(Event) + use<> {
    let (client, answered) = (client.clone(), answered.clone());
    move |event| {
        if let Event::Message {
            link, head, size, ..
        } = event
        {
            assert_eq!(head[..], answered.load(Relaxed).to_be_bytes());
            client.consumed(link, size);
            answered.fetch_add(1, Relaxed);
        }
    }
}

/// Sends, and reads by itself until the answer is there. It waits for ever: a wake-up that is lost hangs the test.
fn ask(client: &Arc<Connection>, answered: &Arc<AtomicU32>, count: u32) {
    let open = |session: &mut Session| session.open_link(ENDPOINT, TrafficClass::Data);
    let link = client.with(open).unwrap();
    let mut hear = hearing(client, answered);
    for number in 0..count {
        client
            .send(link, message(&number.to_be_bytes(), &[]))
            .unwrap();
        let is_waiting = || answered.load(Relaxed) == number;
        while is_waiting() {
            assert!(client.read_here(FOR_EVER, is_waiting, &mut hear));
        }
    }
}

/// A process that is gone closes its socket, and says nothing.
#[test]
fn who_sleeps_hears_of_the_peers_death() {
    run(async {
        let site = Site::new();
        let (manager, worker) = (willing(site.manager()), willing(site.worker("lab1")));
        for is_full in [false, true] {
            let (client, server) = Way::SharedMemory.meet(&manager, &worker).await;
            let client = End::serve(client);
            if is_full {
                let link = client.open();
                client.post(link, b"", &vec![1; 4 << 20]).unwrap();
            }
            drop(server);
            let ended = client.ended().await;
            let is_truncated = matches!(ended, Ended::Session(SessionError::Truncated { .. }));
            assert!(is_truncated || is_full, "{ended}");
        }
    });
}

/// What was written before the end is there, even though nobody is at the other end any more.
#[test]
fn the_last_word_is_read_when_its_writer_has_gone() {
    run(async {
        let site = Site::new();
        let (manager, worker) = (willing(site.manager()), willing(site.worker("lab1")));
        let (client, server) = Way::SharedMemory.meet(&manager, &worker).await;
        client.connection.close(CloseReason::ShuttingDown);
        drop(client);
        let ended = End::serve(server).ended().await;
        assert!(
            matches!(ended, Ended::Closed(CloseReason::ShuttingDown)),
            "{ended}"
        );
    });
}

/// Reads by itself when the session ends under it.
#[test]
fn a_thread_that_waits_sees_the_end() {
    run(async {
        let site = Site::new();
        let (manager, worker) = (willing(site.manager()), willing(site.worker("lab1")));
        let (client, server) = Way::SharedMemory.meet(&manager, &worker).await;
        let (client, server) = (End::serve(client), End::serve(server));
        let connection = client.connection.clone();
        let waiting =
            tokio::task::spawn_blocking(
                move || {
                    while connection.read_here(FOR_EVER, || true, drop) {}
                },
            );
        server.connection.close(CloseReason::Finished);
        soon("the thread's end", waiting).await.unwrap();
        client.ended().await;
        server.ended().await;
    });
}

/// Lines of `/proc/self/smaps` about shared memory of sessions.
fn mappings() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut is_ours = false;
    maps.lines()
        .filter(|line| {
            if line.contains('-') && line.contains(' ') && !line.starts_with("Vm") {
                let first = line.split(' ').next().unwrap_or_default();
                if first.contains('-') {
                    is_ours = line.contains("exoskel-ring");
                }
            }
            is_ours && line.starts_with("VmFlags")
        })
        .map(ToOwned::to_owned)
        .collect()
}

/// In this process nothing else may share memory meanwhile, so the test runs in a process of its own.
#[test]
fn memory_is_forked_by_nobody_and_ends_with_the_session() {
    const ALONE: &str = "EXOSKEL_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "memory_is_forked_by_nobody_and_ends_with_the_session";
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        let status = command.args(["--exact", name]).env(ALONE, "1").status();
        assert!(status.unwrap().success());
        return;
    }
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let site = Site::new();
    let round = || {
        run(async {
            let (manager, worker) = (willing(site.manager()), willing(site.worker("lab1")));
            let (client, server) = Way::SharedMemory.sessions(&manager, &worker).await;
            let flags = mappings();
            // One for each end, which are both in this process.
            assert_eq!(flags.len(), 2);
            for flags in flags {
                // Not copied by fork, nor into core dumps.
                let has = |flag| flags.split_whitespace().any(|word| word == flag);
                assert!(has("dc") && has("dd") && has("sh"), "{flags}");
            }
            for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
                let target = read_link(entry.unwrap().path()).unwrap_or_default();
                assert!(!target.to_string_lossy().contains("exoskel-ring"));
            }
            part(client, server).await;
        });
    };
    // The first round opens what the process keeps.
    round();
    let before = descriptors();
    for _ in 0..20 {
        round();
        assert_eq!(mappings(), Vec::<String>::new());
    }
    // A thread of the last handshake may still hold the runtime that it worked for.
    let deadline = Instant::now() + Duration::from_secs(10);
    while descriptors() > before {
        let left = descriptors();
        assert!(
            Instant::now() < deadline,
            "{left} descriptors, expected at most {before}"
        );
        thread::yield_now();
    }
}

// --- somebody between the two -----------------------------------------------------------------------

/// What somebody in the middle does with the memory that passes.
type Exchange = fn(OwnedFd) -> Option<OwnedFd>;

/// Which error is to come of it.
type Expected = fn(&SharedMemoryError) -> bool;

/// Two sockets with somebody between them whom nobody can see.
fn with_somebody_between(exchange: Exchange) -> (Socket, Socket) {
    let (client, near) = UnixStream::pair().unwrap();
    let (far, server) = UnixStream::pair().unwrap();
    let (mut near_back, mut far_back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    thread::spawn(move || {
        let _ = forward(near, far, exchange);
    });
    thread::spawn(move || {
        let _ = io::copy(&mut far_back, &mut near_back);
        let _ = near_back.shutdown(std::net::Shutdown::Both);
    });
    (Socket::unix(client).unwrap(), Socket::unix(server).unwrap())
}

fn forward(mut from: UnixStream, mut to: UnixStream, exchange: Exchange) -> io::Result<()> {
    loop {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut first = [0];
        let mut slices = [IoSliceMut::new(&mut first)];
        if recvmsg(&from, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes == 0 {
            return to.shutdown(std::net::Shutdown::Both);
        }
        let passed = control.drain().find_map(|part| match part {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let exchanged = passed.and_then(exchange);
        let descriptors: Vec<_> = exchanged.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&descriptors));
        }
        sendmsg(
            &to,
            &[IoSlice::new(&first)],
            &mut control,
            SendFlags::empty(),
        )?;
        if (20..=23).contains(&first[0]) {
            let mut header = [0; 4];
            from.read_exact(&mut header)?;
            let mut record = vec![0; usize::from(u16::from_be_bytes([header[2], header[3]]))];
            from.read_exact(&mut record)?;
            to.write_all(&header)?;
            to.write_all(&record)?;
        }
    }
}

fn own_memory(like: &OwnedFd, seals: SealFlags) -> OwnedFd {
    let size = rustix::fs::fstat(like).unwrap().st_size;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("of the middle", flags).unwrap();
    rustix::fs::ftruncate(&memory, size as u64).unwrap();
    rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
    memory
}

#[test]
fn nobody_between_the_two_can_put_other_memory_in_its_place() {
    let exchanges: [(Exchange, Expected); 4] = [
        (
            |memory| {
                let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
                Some(own_memory(&memory, seals))
            },
            |error| matches!(error, SharedMemoryError::Replaced { .. }),
        ),
        // Which could be made smaller later.
        (
            |memory| Some(own_memory(&memory, SealFlags::GROW)),
            |error| matches!(error, SharedMemoryError::NotSealed),
        ),
        (
            |_| Some(std::fs::File::open("/proc/self/exe").unwrap().into()),
            |error| matches!(error, SharedMemoryError::NoMemory),
        ),
        (
            |_| None,
            |error| matches!(error, SharedMemoryError::NoDescriptor),
        ),
    ];
    for (exchange, is_expected) in exchanges {
        run(async {
            let site = Site::new();
            let (manager, worker) = (willing(site.manager()), willing(site.worker("lab1")));
            let sockets = with_somebody_between(exchange);
            let (client, server) = meet(sockets, &manager, None, &worker).await;
            assert!(client.is_err());
            match server.err() {
                Some(EstablishError::SharedMemory(error)) => {
                    assert!(is_expected(&error), "{error}");
                }
                other => panic!("got {other:?}, expected an error of memory"),
            }
        });
    }
    // The way itself is no reason to refuse.
    run(async {
        let site = Site::new();
        let (manager, worker) = (willing(site.manager()), willing(site.worker("lab1")));
        let sockets = with_somebody_between(Some);
        let (client, server) = meet(sockets, &manager, None, &worker).await;
        assert_eq!(
            (kind(client), kind(server)),
            ("shared memory", "shared memory")
        );
    });
}
