//! Raw TCP: what everything else is held against.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::{Arrivals, Failure, Lane, Lanes, payload};

/// Reading in pieces is faster than a whole message at once: everything is held against the better way.
pub(crate) const READ_BYTES: usize = 256 << 10;

/// A congestion control that doesn't pace, whatever the system's default is.
const UNPACED: &str = "cubic";

/// A connection on the loopback network.
pub(crate) fn tcp_pair() -> Result<(TcpStream, TcpStream), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let far = listener.accept()?.0;
    for socket in [&near, &far] {
        set_up(socket)?;
    }
    Ok((near, far))
}

pub(crate) fn set_up(socket: &TcpStream) -> Result<(), Failure> {
    socket.set_nodelay(true)?;
    // Reno is in every kernel, cubic in most.
    rustix::net::sockopt::set_tcp_congestion(socket, UNPACED)
        .or_else(|_| rustix::net::sockopt::set_tcp_congestion(socket, "reno"))?;
    Ok(())
}

struct RawStream {
    socket: TcpStream,
    arrivals: Arc<Arrivals>,
}

/// Two of the same: how far the second is from the first is how far numbers can be trusted.
pub(crate) fn lanes(lanes: &mut Lanes) -> Result<(), Failure> {
    for name in ["stream_raw", "stream_raw_again"] {
        let (socket, mut far) = tcp_pair()?;
        let arrivals = Arc::new(Arrivals::new());
        let heard = arrivals.clone();
        thread::spawn(move || {
            let mut piece = vec![0; READ_BYTES];
            while let Ok(count @ 1..) = far.read(&mut piece) {
                heard.add(count as u64);
            }
        });
        lanes.insert(name.to_owned(), Box::new(RawStream { socket, arrivals }));
    }
    Ok(())
}

impl Lane for RawStream {
    fn turn(&mut self, bytes: usize, count: u64) -> Result<Duration, Failure> {
        let message = payload(bytes);
        let target = self.arrivals.count() + bytes as u64 * count;
        self.arrivals.want(target);
        let start = Instant::now();
        for _ in 0..count {
            self.socket.write_all(&message)?;
        }
        self.arrivals.wait(target);
        Ok(start.elapsed())
    }
}
