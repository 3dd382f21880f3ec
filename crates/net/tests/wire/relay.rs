//! Somebody in the middle of a connection, who can do everything with its bytes but open them.

use std::sync::{Arc, Mutex};

use exoskel_net::listening::Listening;
use exoskel_net::socket::{Socket, SocketKind};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};

use super::unix;

const TLS_HEADER_BYTES: usize = 5;
const RECORD_HEADER_BYTES: usize = 16;
const TAG_BYTES: usize = 16;
/// TLS's content type of everything that is encrypted.
const APPLICATION_DATA: u8 = 23;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// One record as it travels.
#[derive(Clone)]
pub(crate) struct Record {
    pub(crate) direction: Direction,
    /// Its number in the session and its direction; none for a record of TLS.
    pub(crate) number: Option<u64>,
    pub(crate) bytes: Vec<u8>,
}

impl Record {
    /// Whether it is a bulk record of the session.
    pub(crate) fn is_bulk(&self) -> bool {
        self.number.is_some() && self.bytes[0] == 4
    }

    /// Whether it starts a message of the session.
    pub(crate) fn is_head(&self) -> bool {
        self.number.is_some() && self.bytes[0] == 2
    }
}

/// What becomes of a record.
pub(crate) enum Move {
    /// These bytes go on instead of it.
    Pass(Vec<u8>),
    /// These bytes go on, then both connections are cut.
    Cut(Vec<u8>),
}

type Hand = Box<dyn FnMut(Record) -> Move + Send>;

/// A relay between two connections.
pub(crate) struct Relay {
    hand: Arc<Mutex<Hand>>,
    held: watch::Sender<[bool; 2]>,
    cut: watch::Sender<bool>,
    /// Bytes that wait behind a hold, by direction.
    waiting: watch::Receiver<[usize; 2]>,
}

impl Relay {
    /// A relay between two TCP connections, as a NAT or a tunnel is.
    pub(crate) async fn tcp() -> (Self, (Socket, Socket)) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, near) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (far, server) = tokio::join!(TcpStream::connect(address), listener.accept());
        let relay = Self::between(near.unwrap().0, far.unwrap());
        let client = Socket::tcp(client.unwrap()).unwrap();
        (relay, (client, Socket::tcp(server.unwrap().0).unwrap()))
    }

    /// A relay under our own account from one Unix socket to another, as `ssh -L` is. The server listens at `server`; the
    /// client finds the relay at `relay`.
    pub(crate) async fn unix(relay: &Listening, server: &Listening) -> (Self, (Socket, Socket)) {
        let stream = |socket: Socket| {
            assert_eq!(socket.kind(), SocketKind::Unix);
            UnixStream::from_std(socket.into_descriptor().into()).unwrap()
        };
        let (client, near) = unix(relay).await;
        let (far, server) = unix(server).await;
        (Self::between(stream(near), stream(far)), (client, server))
    }

    /// A relay that neither end can see. It stands for somebody on a wire of a trusted domain, who leaves addresses
    /// as they are.
    pub(crate) fn unseen() -> (Self, (Socket, Socket)) {
        let (client, near) = std::os::unix::net::UnixStream::pair().unwrap();
        let (far, server) = std::os::unix::net::UnixStream::pair().unwrap();
        let stream = |stream: std::os::unix::net::UnixStream| {
            stream.set_nonblocking(true).unwrap();
            UnixStream::from_std(stream).unwrap()
        };
        let relay = Self::between(stream(near), stream(far));
        (
            relay,
            (Socket::unix(client).unwrap(), Socket::unix(server).unwrap()),
        )
    }

    fn between<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(near: S, far: S) -> Self {
        let pass: Hand = Box::new(|record| Move::Pass(record.bytes));
        let hand = Arc::new(Mutex::new(pass));
        let held = watch::Sender::new([false; 2]);
        let cut = watch::Sender::new(false);
        let (waiting_now, waiting) = watch::channel([0, 0]);
        let (near_read, near_write) = split(near);
        let (far_read, far_write) = split(far);
        let (to_server, from_client) = mpsc::unbounded_channel();
        let (to_client, from_server) = mpsc::unbounded_channel();
        let parts = (
            take(
                near_read,
                Direction::ToServer,
                hand.clone(),
                to_server,
                waiting_now.clone(),
            ),
            take(
                far_read,
                Direction::ToClient,
                hand.clone(),
                to_client,
                waiting_now.clone(),
            ),
            give(
                far_write,
                Direction::ToServer,
                from_client,
                held.subscribe(),
                cut.clone(),
                waiting_now.clone(),
            ),
            give(
                near_write,
                Direction::ToClient,
                from_server,
                held.subscribe(),
                cut.clone(),
                waiting_now,
            ),
        );
        let mut stop = cut.subscribe();
        tokio::spawn(async move {
            let all = async { tokio::join!(parts.0, parts.1, parts.2, parts.3) };
            tokio::select! {
                _ = all => {}
                _ = stop.wait_for(|cut| *cut) => {}
            }
        });
        Self {
            hand,
            held,
            cut,
            waiting,
        }
    }

    /// From now on, records go through this hand.
    pub(crate) fn set(&self, hand: impl FnMut(Record) -> Move + Send + 'static) {
        *self.hand.lock().unwrap() = Box::new(hand);
    }

    /// Keeps all bytes back until [`Relay::release`], as if one end's process had stopped.
    pub(crate) fn hold(&self) {
        self.held.send_replace([true; 2]);
    }

    /// The same for one direction only.
    pub(crate) fn hold_one(&self, direction: Direction) {
        self.held
            .send_modify(|held| held[direction as usize] = true);
    }

    /// Lets TLS pass, and keeps back what the server says behind it, from its answer on.
    pub(crate) fn hold_the_answer(&self) {
        let held = self.held.clone();
        self.set(move |record| {
            // The client's first encrypted record follows the last one of the server's TLS handshake.
            if record.direction == Direction::ToServer && record.bytes[0] == APPLICATION_DATA {
                held.send_modify(|held| held[Direction::ToClient as usize] = true);
            }
            Move::Pass(record.bytes)
        });
    }

    /// Lets everything go that was held, in one write for each direction.
    pub(crate) fn release(&self) {
        self.held.send_replace([false; 2]);
    }

    /// Waits until more than so many bytes are held back in a direction.
    pub(crate) async fn holds_more_than(&mut self, direction: Direction, bytes: usize) {
        let enough = |held: &[usize; 2]| held[direction as usize] > bytes;
        let held = super::soon("bytes at the relay", self.waiting.wait_for(enough)).await;
        drop(held.unwrap());
    }

    /// Cuts both connections.
    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }
}

/// Reads records, and leaves what the hand makes of them.
async fn take(
    mut from: impl AsyncRead + Unpin,
    direction: Direction,
    hand: Arc<Mutex<Hand>>,
    to: mpsc::UnboundedSender<Move>,
    waiting: watch::Sender<[usize; 2]>,
) {
    let mut numbers = 0;
    while let Some(bytes) = record(&mut from).await {
        let is_session = is_session(bytes[0]);
        let number = is_session.then_some(numbers);
        numbers += u64::from(is_session);
        let record = Record {
            direction,
            number,
            bytes,
        };
        let step = hand.lock().unwrap()(record);
        let (Move::Pass(bytes) | Move::Cut(bytes)) = &step;
        waiting.send_modify(|waiting| waiting[direction as usize] += bytes.len());
        if to.send(step).is_err() {
            return;
        }
    }
}

/// Writes what is left for it, as much at once as there is.
async fn give(
    mut to: impl AsyncWrite + Unpin,
    direction: Direction,
    mut from: mpsc::UnboundedReceiver<Move>,
    mut held: watch::Receiver<[bool; 2]>,
    cut: watch::Sender<bool>,
    waiting: watch::Sender<[usize; 2]>,
) {
    while let Some(first) = from.recv().await {
        // The sender lives as long as the test; behind it nothing is held any more.
        let _ = held
            .wait_for(|held| !held[direction as usize])
            .await
            .map(drop);
        let mut together = Vec::new();
        let mut is_last = false;
        let mut next = Some(first);
        while let Some(step) = next {
            let (Move::Pass(bytes) | Move::Cut(bytes)) = &step;
            together.extend_from_slice(bytes);
            if matches!(step, Move::Cut(_)) {
                is_last = true;
                break;
            }
            next = from.try_recv().ok();
        }
        waiting.send_modify(|waiting| {
            let left = &mut waiting[direction as usize];
            *left = left.saturating_sub(together.len());
        });
        if to.write_all(&together).await.is_err() {
            return;
        }
        if is_last {
            let _ = to.shutdown().await;
            cut.send_replace(true);
            return;
        }
    }
    let _ = to.shutdown().await;
}

/// Records of TLS start with a content type of 20 to 23, those of a session with a kind of 1 to 4.
fn is_session(first: u8) -> bool {
    first < 20
}

async fn record(from: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut bytes = vec![0; TLS_HEADER_BYTES];
    from.read_exact(&mut bytes).await.ok()?;
    let length = if is_session(bytes[0]) {
        bytes.resize(RECORD_HEADER_BYTES, 0);
        from.read_exact(&mut bytes[TLS_HEADER_BYTES..]).await.ok()?;
        let length = [bytes[12], bytes[13], bytes[14], bytes[15]];
        u32::from_be_bytes(length) as usize + TAG_BYTES
    } else {
        usize::from(u16::from_be_bytes([bytes[3], bytes[4]]))
    };
    let start = bytes.len();
    bytes.resize(start + length, 0);
    from.read_exact(&mut bytes[start..]).await.ok()?;
    Some(bytes)
}
