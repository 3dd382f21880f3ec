//! Two connections that a gateway has joined.

use std::cell::Cell;
use std::fmt;
use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::time::Instant;

use crate::socket::Socket;
use crate::splice::Pipe;

/// What went through a tunnel.
#[derive(Debug, Default)]
pub(super) struct TunnelTraffic {
    /// To the node that was asked for.
    pub(super) there: Cell<u64>,
    /// From it.
    pub(super) back: Cell<u64>,
}

/// How long a tunnel may carry nothing.
#[derive(Clone, Copy, Debug)]
pub struct TunnelPatience {
    /// Before its first byte, and when one of its ends is done.
    pub idle: Duration,
    /// At any time. Both ends of a session send heartbeats, more often than any of them gives the other one up.
    pub still: Duration,
}

/// Why a tunnel is over.
#[derive(Debug)]
pub(super) enum TunnelEnd {
    /// Both ends have ended their directions.
    Done,
    /// One of the two connections broke.
    Broken(io::Error),
    /// Neither end has said anything.
    SaidNothing(Duration),
    /// One end is done, and the other says nothing.
    HalfClosed(Duration),
    /// Neither end has said anything more.
    Still(Duration),
    /// The gateway doesn't allow it any more.
    Cut(String),
}

impl fmt::Display for TunnelEnd {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => formatter.write_str("both ends are done"),
            Self::Broken(error) => write!(formatter, "a connection broke: {error}"),
            Self::SaidNothing(time) => {
                write!(formatter, "cut, as nobody said anything for {time:?}")
            }
            Self::HalfClosed(time) => write!(
                formatter,
                "cut, as one end is done and the other said nothing for {time:?}"
            ),
            Self::Still(time) => write!(formatter, "cut, as nothing has moved for {time:?}"),
            Self::Cut(reason) => write!(formatter, "cut: {reason}"),
        }
    }
}

/// Moves bytes both ways until both ends are done, something breaks, nothing moves for longer than `patience` allows, or `cut` says why
/// not to go on.
pub(super) async fn join(
    (asker, target): (&Socket, &Socket),
    (there, back): (Pipe, Pipe),
    traffic: &TunnelTraffic,
    patience: TunnelPatience,
    cut: impl Future<Output = String>,
) -> TunnelEnd {
    let done = Cell::new(false);
    let pour = async |pipe: Pipe, from: &Socket, to: &Socket, moved: &Cell<u64>| {
        let poured = pipe.pour(from, to, moved).await;
        done.set(true);
        poured
    };
    let both = async {
        tokio::try_join!(
            pour(there, asker, target, &traffic.there),
            pour(back, target, asker, &traffic.back),
        )
    };
    let moved = || traffic.there.get() + traffic.back.get();
    let idle = async {
        let TunnelPatience { idle, still } = patience;
        let (mut before, mut since) = (0, Instant::now());
        loop {
            tokio::time::sleep(idle).await;
            let now = moved();
            if now == 0 {
                return TunnelEnd::SaidNothing(idle);
            }
            if done.get() && now == before {
                return TunnelEnd::HalfClosed(idle);
            }
            if now != before {
                (before, since) = (now, Instant::now());
            } else if since.elapsed() >= still {
                return TunnelEnd::Still(still);
            }
        }
    };
    tokio::select! {
        result = both => match result {
            Ok(_) => TunnelEnd::Done,
            Err(error) => TunnelEnd::Broken(error),
        },
        end = idle => end,
        reason = cut => TunnelEnd::Cut(reason),
    }
}
