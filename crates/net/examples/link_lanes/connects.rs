//! From nothing to the first answer: a startpoint that somebody has passed on, and rustls with certificates at both ends.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use exoskel_identity::Role;
use exoskel_link::capability::{Caveat, Startpoint};
use exoskel_net::links::{LinkNode, MessageContents};
use exoskel_net::pki::ThrowAwayAuthority;

use super::nodes::{HANDLER, node, now, take_all, terms};
use super::tls::Tls;
use super::{Failure, Lane, Lanes};

const PATIENCE: Duration = Duration::from_secs(10);

struct TlsConnect {
    tls: Arc<Tls>,
    address: SocketAddr,
}

struct FirstAnswer {
    authority: ThrowAwayAuthority,
    _far: Arc<LinkNode>,
    /// As its owner has given it away.
    text: String,
    holders: u64,
}

pub(crate) fn lanes(lanes: &mut Lanes) -> Result<(), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let tls = Arc::new(Tls::new()?);
    let far = tls.clone();
    thread::spawn(move || {
        for socket in listener.incoming().flatten() {
            // Who connects badly is told by its own end.
            let _ = echo(&far, socket);
        }
    });
    lanes.insert(
        "connect_rustls".to_owned(),
        Box::new(TlsConnect { tls, address }),
    );
    let authority = ThrowAwayAuthority::new(now())?;
    let config = terms(authority.issue(Role::Peer, "far.example.org", now())?)?;
    let far = Arc::new(node(config, &["tcp://127.0.0.1:0"], Vec::new())?);
    take_all(&far)?;
    let startpoint = far.startpoint("encrypted", false, vec![Caveat::holder("*.example.org")?])?;
    let lane = FirstAnswer {
        authority,
        _far: far,
        text: startpoint.text(),
        holders: 0,
    };
    lanes.insert("connect_startpoint".to_owned(), Box::new(lane));
    Ok(())
}

fn echo(tls: &Tls, socket: TcpStream) -> Result<(), Failure> {
    socket.set_nodelay(true)?;
    let mut connection = tls.welcome(socket)?;
    let mut byte = [0];
    connection.read_exact(&mut byte)?;
    connection.write_all(&byte)?;
    connection.flush()?;
    Ok(())
}

impl Lane for TlsConnect {
    fn turn(&mut self, _: usize, count: u64) -> Result<Duration, Failure> {
        let start = Instant::now();
        for _ in 0..count {
            let socket = TcpStream::connect(self.address)?;
            socket.set_nodelay(true)?;
            let mut connection = self.tls.dial(socket)?;
            connection.write_all(&[1])?;
            connection.flush()?;
            connection.read_exact(&mut [0])?;
        }
        Ok(start.elapsed())
    }
}

impl Lane for FirstAnswer {
    fn turn(&mut self, _: usize, count: u64) -> Result<Duration, Failure> {
        let mut spent = Duration::ZERO;
        for _ in 0..count {
            self.holders += 1;
            let name = format!("holder{}.example.org", self.holders);
            let config = terms(self.authority.issue(Role::Peer, &name, now())?)?;
            // A program that runs already; what comes to it is the text.
            let holder = node(config, &[], Vec::new())?;
            let start = Instant::now();
            let binding = holder.bind(Startpoint::parse(&self.text)?);
            let request = holder.request(binding, HANDLER, MessageContents::default())?;
            let answer = holder.wait(binding, request, PATIENCE);
            spent += start.elapsed();
            answer.ok_or("no answer came")?;
            holder.close();
        }
        Ok(spent)
    }
}
