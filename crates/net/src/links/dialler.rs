//! Somebody who connects for a node that may make no socket itself, as in a sandbox: the agent of a job.
//!
//! Each connection is asked for over a pair of sockets of its own: one end goes to the dialler with the address, and over the other one comes
//! what is connected, or why nothing is.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::PeerText;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::address::Address;
use crate::socket::Socket;

/// What a dialler says of a connection that it couldn't make.
const REASON_BYTES_MAX: usize = 1024;

/// The socket over which a dialler is asked.
#[derive(Clone, Debug)]
pub struct Dialler(Arc<OwnedFd>);

impl Dialler {
    /// One that listens at the other end of this socket, which keeps messages apart.
    #[must_use]
    pub fn new(asked: OwnedFd) -> Self {
        Self(Arc::new(asked))
    }

    /// Connects to whoever listens there.
    pub(super) async fn connect(&self, address: &Address, time: Duration) -> io::Result<Socket> {
        let (dialler, place) = (self.clone(), address.to_string());
        let connected = crate::beside::beside(move || dialler.ask(&place, time)).await;
        let connected = connected.unwrap_or_else(|| Err(io::ErrorKind::Other.into()))?;
        match address {
            Address::Tcp(_) => Socket::tcp_from_std(connected.into()),
            Address::Unix(_) => Socket::unix(connected.into()),
        }
    }

    fn ask(&self, place: &str, time: Duration) -> io::Result<OwnedFd> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_read_timeout(Some(time))?;
        let descriptors = [theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let text = [IoSlice::new(place.as_bytes())];
        rustix::net::sendmsg(&self.0, &text, &mut control, SendFlags::NOSIGNAL)?;
        drop(theirs);
        answer(&ours)
    }
}

/// What comes back: a connected descriptor with a byte, or the reason alone.
fn answer(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut said = [0; REASON_BYTES_MAX];
    let mut slices = [IoSliceMut::new(&mut said)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let bytes = rustix::net::recvmsg(socket, &mut slices, &mut control, flags)?.bytes;
    let connected = control.drain().find_map(|part| match part {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    connected.ok_or_else(|| {
        let reason = String::from_utf8_lossy(&said[..bytes]);
        io::Error::other(match reason.as_ref() {
            "" => "what connects for this process has ended".to_owned(),
            reason => PeerText::new(reason).sentence(),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use rustix::net::{AddressFamily, SocketFlags, SocketType};

    use super::*;

    fn asked() -> (Dialler, OwnedFd) {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .unwrap();
        (Dialler::new(ours), theirs)
    }

    /// Takes one request, as a dialler does: the address, and where the answer goes.
    fn request(socket: &OwnedFd) -> (String, UnixStream) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut text = [0; 256];
        let mut slices = [IoSliceMut::new(&mut text)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let bytes = rustix::net::recvmsg(socket, &mut slices, &mut control, flags)
            .unwrap()
            .bytes;
        let RecvAncillaryMessage::ScmRights(mut descriptors) = control.drain().next().unwrap()
        else {
            panic!("no descriptor came")
        };
        let reply = descriptors.next().unwrap().into();
        (String::from_utf8_lossy(&text[..bytes]).into_owned(), reply)
    }

    #[test]
    fn what_the_dialler_has_connected_comes_to_who_asked_and_so_does_its_refusal() {
        let (dialler, theirs) = asked();
        let (connected, mut peer) = UnixStream::pair().unwrap();
        let served = std::thread::spawn(move || {
            let (text, reply) = request(&theirs);
            crate::ring::passing::send(reply.as_fd(), connected.as_fd()).unwrap();
            let (_, mut refused) = request(&theirs);
            refused.write_all(b"it is no sibling").unwrap();
            let (_, unanswered) = request(&theirs);
            drop(unanswered);
            text
        });
        let time = Duration::from_secs(20);
        let stream = UnixStream::from(dialler.ask("unix:/there", time).unwrap());
        peer.write_all(b"x").unwrap();
        let mut byte = [0];
        io::Read::read_exact(&mut &stream, &mut byte).unwrap();
        let refusal = dialler
            .ask("unix:/elsewhere", time)
            .unwrap_err()
            .to_string();
        assert!(refusal.contains("it is no sibling"), "{refusal}");
        assert!(dialler.ask("unix:/gone", time).is_err());
        assert_eq!(served.join().unwrap(), "unix:/there");
    }
}
