//! What a peer can do to a ring, and what this side makes of it.

use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering::Relaxed;

use exoskel_link::Side;
use exoskel_link::handshake::MemoryName;
use rustix::fs::{MemfdFlags, SealFlags};

use super::MemoryRings;
use super::flow::{RingMemory, Word};
use super::memory::{MEMORY_BYTES, RING_BYTES, RingHalf, SharedMapping};
use super::passing::{self, NewMemory, SharedMemoryError};
use crate::epoll_set::EpollSet;
use crate::socket::Socket;

/// A ring's end, and what a peer without any rules has: the memory and the socket.
struct Against {
    ring: MemoryRings,
    /// Tells of the doorbell.
    readiness: EpollSet,
    memory: SharedMapping,
    socket: UnixStream,
}

impl Against {
    fn new() -> Self {
        let new = NewMemory::new().unwrap();
        let (ours, socket) = UnixStream::pair().unwrap();
        let ours = Socket::unix(ours).unwrap().unwatched();
        let readiness = EpollSet::new(&ours).unwrap();
        let ring = MemoryRings::new(ours, new.memory, Side::Client).unwrap();
        Self {
            ring,
            readiness,
            memory: SharedMapping::new(&new.descriptor).unwrap(),
            socket,
        }
    }

    fn to_ring(&self) -> RingHalf<'_> {
        self.memory.direction(Side::Server)
    }

    fn of_ring(&self) -> RingHalf<'_> {
        self.memory.direction(Side::Client)
    }

    fn read(&self, count: usize) -> std::io::Result<usize> {
        let mut bytes = vec![0; count];
        self.ring.read_vectored(&mut [IoSliceMut::new(&mut bytes)])
    }

    fn write(&self, count: usize) -> std::io::Result<usize> {
        self.ring
            .try_write_vectored(&[IoSlice::new(&vec![0; count])])
    }
}

fn kind<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[tokio::test]
async fn indices_that_cannot_be_end_the_reading() {
    for index in [RING_BYTES + 1, 1 << 31, u32::MAX] {
        let against = Against::new();
        against.to_ring().store(Word::Written, index, Relaxed);
        let error = against.read(10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let said = error.to_string();
        let expected = format!("{index} bytes are under way, expected at most {RING_BYTES}");
        assert!(said.contains(&expected), "{said}");
    }
}

#[tokio::test]
async fn indices_that_cannot_be_end_the_writing() {
    let against = Against::new();
    assert_eq!(against.write(10).unwrap(), 10);
    // More has been read than was written; the sum of both wraps. As long as there is room, nobody looks.
    for index in [11, RING_BYTES, u32::MAX - RING_BYTES] {
        against.of_ring().store(Word::Read, index, Relaxed);
        let written = against.write(RING_BYTES as usize);
        assert_eq!(kind(written), Some(ErrorKind::InvalidData));
    }
    assert_eq!(
        kind(against.ring.writable(&against.readiness).await),
        Some(ErrorKind::InvalidData)
    );
}

/// All other values give the peer its own wrong bytes, and this side goes on.
#[tokio::test]
async fn an_index_that_goes_back_and_forth_is_only_the_peers_trouble() {
    let against = Against::new();
    for round in 0_u32..1000 {
        let index = round.wrapping_mul(0x9E37_79B1);
        against.to_ring().store(Word::Written, index, Relaxed);
        against.of_ring().store(Word::Read, index, Relaxed);
        let read = against.read(1 + round as usize);
        assert!(matches!(
            kind(read),
            None | Some(ErrorKind::InvalidData | ErrorKind::WouldBlock)
        ));
        let written = against.write(1 + round as usize);
        assert!(matches!(
            kind(written),
            None | Some(ErrorKind::InvalidData | ErrorKind::WouldBlock)
        ));
    }
}

/// A thread that rewrites every word while this side reads and writes.
#[tokio::test]
async fn words_may_change_at_any_time() {
    let against = Against::new();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut value = 1_u32;
            while !is_over.load(Relaxed) {
                value = value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                for word in [
                    Word::Written,
                    Word::Read,
                    Word::ReaderSleeps,
                    Word::WriterSleeps,
                ] {
                    against
                        .to_ring()
                        .store(word, value >> (value & 15), Relaxed);
                    against
                        .of_ring()
                        .store(word, value >> (value & 15), Relaxed);
                }
            }
        });
        for count in 0..20_000 {
            let _ = against.read(count % 5000);
            let _ = against.write(count % 5000);
        }
        is_over.store(true, Relaxed);
    });
}

#[tokio::test]
async fn a_flood_of_wake_ups_takes_no_more_than_its_turn() {
    use std::io::Write;
    let against = Against::new();
    against.socket.set_nonblocking(true).unwrap();
    let mut socket = &against.socket;
    while socket.write(&[0; 4096]).is_ok() {}
    assert_eq!(kind(against.read(10)), Some(ErrorKind::Interrupted));
    // Nobody takes our own, and nothing waits for that.
    let against = Against::new();
    for _ in 0..2000 {
        against.of_ring().store(Word::ReaderSleeps, 1, Relaxed);
        assert_eq!(against.write(1).unwrap(), 1);
    }
}

#[tokio::test]
async fn the_end_of_the_socket_is_the_peers_end() {
    let mut against = Against::new();
    against.to_ring().store(Word::Written, 3, Relaxed);
    // It left without having heard what it was told.
    against.of_ring().store(Word::ReaderSleeps, 1, Relaxed);
    assert_eq!(against.write(1).unwrap(), 1);
    let (other, _) = UnixStream::pair().unwrap();
    drop(std::mem::replace(&mut against.socket, other));
    assert_eq!(against.read(10).unwrap(), 3);
    assert_eq!(against.read(10).unwrap(), 0);
    assert_eq!(kind(against.write(1)), Some(ErrorKind::BrokenPipe));
    against.ring.writable(&against.readiness).await.unwrap();
}

#[tokio::test]
async fn a_full_ring_refuses_and_room_is_told() {
    let against = Against::new();
    let most = RING_BYTES as usize;
    assert_eq!(against.write(most + 1).unwrap(), most);
    assert_eq!(kind(against.write(1)), Some(ErrorKind::WouldBlock));
    let made_room = async {
        tokio::task::yield_now().await;
        against.of_ring().store(Word::Read, RING_BYTES, Relaxed);
        std::io::Write::write_all(&mut &against.socket, &[0]).unwrap();
        against.readiness.heard().await.unwrap();
        assert_eq!(kind(against.read(1)), Some(ErrorKind::WouldBlock));
    };
    let (writable, ()) = tokio::join!(against.ring.writable(&against.readiness), made_room);
    writable.unwrap();
    assert_eq!(against.write(most).unwrap(), most);
}

/// Memory that a peer has made by its own rules, and the name under which it offers it.
fn foreign(bytes: u64, seals: SealFlags) -> (std::os::fd::OwnedFd, MemoryName) {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create("foreign", flags).unwrap();
    rustix::fs::ftruncate(&memory, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&memory, seals).unwrap();
    let stat = rustix::fs::fstat(&memory).unwrap();
    let name = MemoryName {
        device: stat.st_dev,
        inode: stat.st_ino,
        bytes,
    };
    (memory, name)
}

#[test]
fn memory_that_is_not_what_it_should_be_is_refused() {
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let bytes = MEMORY_BYTES as u64;
    let refused = |(memory, name)| passing::map(&memory, name).unwrap_err();
    for seals in [
        SealFlags::SEAL,
        SealFlags::SHRINK | SealFlags::SEAL,
        SealFlags::GROW | SealFlags::SEAL,
        SealFlags::SHRINK | SealFlags::GROW,
        all | SealFlags::WRITE,
        all | SealFlags::FUTURE_WRITE,
    ] {
        assert_eq!(refused(foreign(bytes, seals)), SharedMemoryError::NotSealed);
    }
    for got in [0, 4096, bytes - 1, bytes + 1, 2 * bytes] {
        let expected = bytes;
        assert_eq!(
            refused(foreign(got, all)),
            SharedMemoryError::Size { got, expected }
        );
    }
    let (memory, got) = foreign(bytes, all);
    let (_other, expected) = foreign(bytes, all);
    assert_eq!(
        refused((memory, expected)),
        SharedMemoryError::Replaced { got, expected }
    );
    let (_, name) = foreign(bytes, all);
    let (one, _) = UnixStream::pair().unwrap();
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    for other in [one.into(), file.into()] {
        assert_eq!(refused((other, name)), SharedMemoryError::NoMemory);
    }
    let (memory, name) = foreign(bytes, all);
    passing::map(&memory, name).unwrap().unwrap();
    // What it is stays so.
    rustix::fs::ftruncate(&memory, 0).unwrap_err();
}

#[test]
fn a_byte_without_a_descriptor_gives_none() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    std::io::Write::write_all(&mut theirs, b"mm").unwrap();
    assert!(passing::receive(ours.as_fd()).unwrap().is_none());
    let new = NewMemory::new().unwrap();
    passing::send(theirs.as_fd(), new.descriptor.as_fd()).unwrap();
    // The second byte came before the descriptor: it stands in its place.
    assert!(passing::receive(ours.as_fd()).unwrap().is_none());
    let got = passing::receive(ours.as_fd()).unwrap().unwrap();
    passing::map(&got, new.name).unwrap().unwrap();
    drop(theirs);
    assert_eq!(
        kind(passing::receive(ours.as_fd())),
        Some(ErrorKind::UnexpectedEof)
    );
}
