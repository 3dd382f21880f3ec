//! Bytes from one socket to another in the kernel: by `splice(2)` through a pipe, without a copy in this process.

use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;

use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};
use tokio::io::Interest;

use crate::socket::Socket;

/// What one direction of a tunnel holds at most. More is faster by little, and a peer that reads nothing pins it.
const PIPE_BYTES: usize = 256 * 1024;

/// So many moves, and others have their turn.
const MOVES_MAX: usize = 16;

/// The pipe of one direction.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    capacity: usize,
}

impl Pipe {
    /// # Errors
    /// When the process is out of descriptors, or the account of memory for pipes.
    pub(crate) fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        // An account with many pipes gets small ones, which are slower, not wrong.
        let capacity =
            fcntl_setpipe_size(&write, PIPE_BYTES).or_else(|_| fcntl_getpipe_size(&write))?;
        Ok(Self {
            read,
            write,
            capacity,
        })
    }

    /// Moves bytes until `from` ends its direction, and then ends that of `to`. `moved` counts them.
    pub(crate) async fn pour(
        &self,
        from: &Socket,
        to: &Socket,
        moved: &Cell<u64>,
    ) -> io::Result<()> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let mut moves = 0;
        loop {
            let fill = || Ok(splice(from, None, &self.write, None, self.capacity, flags)?);
            let mut left = when_ready(from, Interest::READABLE, fill).await?;
            if left == 0 {
                to.shutdown_write();
                return Ok(());
            }
            while left > 0 {
                let drain = || Ok(splice(&self.read, None, to, None, left, flags)?);
                let gone = when_ready(to, Interest::WRITABLE, drain).await?;
                if gone == 0 {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                left -= gone;
                moved.set(moved.get() + gone as u64);
            }
            moves += 1;
            if moves % MOVES_MAX == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}

/// Does it, as soon as the socket is ready for it.
async fn when_ready(
    socket: &Socket,
    interest: Interest,
    act: impl Fn() -> io::Result<usize>,
) -> io::Result<usize> {
    loop {
        match socket.try_io(interest, &act) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.ready(interest).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
