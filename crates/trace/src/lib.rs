//! Messages of a parallel program, as each of its ranks sent and received them: recorded, read and written.
//!
//! A [`Trace`] holds, for each rank, its calls in the order in which it made them, each with the processor time that went by since the call
//! before ("gap"). It comes from SKCT files ([`Trace::read`]), from our tracer ([`Trace::read_calls`]) or from SimGrid's replay text ([`Trace::read_simgrid`]), and goes to SKCT
//! files ([`Trace::write`]). Whatever its source, a trace that exists is sound: every peer, root and communicator is there.
//!
//! # Layout
//!
//! * `skct`: the file format; `calls`: what the tracer leaves; `simgrid`: the text of another simulator
//! * `collective`: which messages a collective operation is made of
//! * `recording`: the messages of a node that runs, until they become a trace
//! * `fault`: what can be wrong, and where

#![forbid(unsafe_code)]

mod calls;
mod collective;
mod fault;
mod recording;
mod simgrid;
mod skct;

pub use calls::RankCalls;
pub use collective::{CollectiveStep, MessageDirection};
pub use fault::{TraceError, TraceFault, TracePlace};
pub use recording::{MESSAGES_MAX, Recording};
pub use simgrid::ReplayText;
pub use skct::FILE_BYTES_MAX;

/// Most ranks of a trace: peers are 16-bit numbers with a sign.
pub const RANKS_MAX: usize = 1 << 15;
/// Longest name of a trace, in bytes: it stands in tables and messages.
pub const NAME_BYTES_MAX: usize = 256;
/// Most records of a trace, all ranks together.
pub const RECORDS_MAX: usize = 1 << 24;
/// Most communicators of one rank: their indexes are bytes.
pub const COMMUNICATORS_MAX: usize = 1 << 8;
/// Most members of all communicators of all ranks together.
pub const MEMBERS_MAX: usize = 1 << 22;
/// Longest gap, in nanoseconds: 40 bits of them, which is some 18 minutes.
pub const GAP_NS_MAX: u64 = (1 << 40) - 1;

/// The calls of all ranks of a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// What ran, such as `CG.A`.
    pub name: String,
    /// How many iterations of its main loop it made; 0 where nobody knows.
    pub iterations: u64,
    /// What somebody should know who uses the trace.
    pub note: String,
    /// The calls of each rank, in order.
    pub ranks: Vec<Vec<TraceRecord>>,
    /// For each rank its communicators, each as the ranks that are in it; number 0 is everybody. They are in the order in which this rank met them.
    pub communicators: Vec<Vec<Vec<u16>>>,
}

/// One call of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Which call.
    pub operation: Operation,
    /// To whom or from whom (a rank of the whole program), or the root of a collective. `None`: nobody, or a receive from anybody whose
    /// sender never became known.
    pub peer: Option<u16>,
    /// Payload. For a receive that is the room, which can be more than the message had. For operations between all pairs it is the
    /// payload for one peer.
    pub bytes: u32,
    /// Of a message; for [`Operation::WaitAll`] how many requests were waited for.
    pub tag: i32,
    /// The request that a call without waiting began, or that was waited for; for [`Operation::WaitAll`] the lowest of them.
    pub request: u32,
    /// Which communicator of this rank.
    pub communicator: u8,
    /// Processor time of this rank between the call before and this one, in nanoseconds, at most [`GAP_NS_MAX`].
    pub gap_ns: u64,
    /// When it was called, in microseconds since the trace began, by the clock on the wall.
    pub entry_us: u32,
    /// How long it took, in microseconds, by the clock on the wall: with waiting, so it isn't a latency.
    pub duration_us: u32,
}

/// What a rank called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// The program begins to communicate.
    Init,
    /// Sends, and waits until the payload may change.
    Send,
    /// Begins to send.
    SendStart,
    /// Receives, and waits for the message.
    Receive,
    /// Begins to receive.
    ReceiveStart,
    /// Waits for one request.
    Wait,
    /// Waits for several requests.
    WaitAll,
    /// Waits until everybody is here.
    Barrier,
    /// The root's payload goes to everybody.
    Broadcast,
    /// Everybody's payloads become one, at the root.
    Reduce,
    /// Everybody's payloads become one, for everybody.
    AllReduce,
    /// A payload from each to each, all of one size.
    AllToAll,
    /// A payload from each to each; their mean size counts.
    AllToAllVarying,
    /// Everybody's payloads go to the root.
    Gather,
    /// Everybody's payloads go to everybody.
    AllGather,
    /// A payload of the root for each.
    Scatter,
    /// Everybody's payloads become one, of which each gets a part.
    ReduceScatter,
    /// Each gets what those before it make together.
    Scan,
    /// The program is done with communicating.
    Finalize,
}

impl Operation {
    /// Every operation with its number in files and the name that MPI gives it.
    const TABLE: [(Self, u8, &'static str); 19] = [
        (Self::Init, 0, "init"),
        (Self::Send, 1, "send"),
        (Self::SendStart, 2, "isend"),
        (Self::Receive, 3, "recv"),
        (Self::ReceiveStart, 4, "irecv"),
        (Self::Wait, 5, "wait"),
        (Self::WaitAll, 6, "waitall"),
        (Self::Barrier, 16, "barrier"),
        (Self::Broadcast, 17, "bcast"),
        (Self::Reduce, 18, "reduce"),
        (Self::AllReduce, 19, "allreduce"),
        (Self::AllToAll, 20, "alltoall"),
        (Self::AllToAllVarying, 21, "alltoallv"),
        (Self::Gather, 22, "gather"),
        (Self::AllGather, 23, "allgather"),
        (Self::Scatter, 24, "scatter"),
        (Self::ReduceScatter, 25, "reducescatter"),
        (Self::Scan, 26, "scan"),
        (Self::Finalize, 31, "finalize"),
    ];

    /// Its number in files.
    pub fn code(self) -> u8 {
        Self::TABLE
            .iter()
            .find(|(operation, ..)| *operation == self)
            .map_or(0, |(_, code, _)| *code)
    }

    /// The one with that number.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::TABLE
            .iter()
            .find(|(_, known, _)| *known == code)
            .map(|(operation, ..)| *operation)
    }

    /// Its name in MPI, in small letters.
    pub fn name(self) -> &'static str {
        Self::TABLE
            .iter()
            .find(|(operation, ..)| *operation == self)
            .map_or("init", |(.., name)| *name)
    }

    /// Whether the payload goes from this rank to one peer.
    pub fn is_send(self) -> bool {
        matches!(self, Self::Send | Self::SendStart)
    }

    /// Whether a payload comes from one peer to this rank.
    pub fn is_receive(self) -> bool {
        matches!(self, Self::Receive | Self::ReceiveStart)
    }

    /// Whether all members of a communicator take part.
    pub fn is_collective(self) -> bool {
        (16..31).contains(&self.code())
    }

    /// Whether it has a root, which is then the record's peer.
    pub fn has_root(self) -> bool {
        matches!(
            self,
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter
        )
    }
}

/// Which part of a record is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Communicator,
    Peer,
    Gap,
}

impl Trace {
    /// The messages that a collective call is made of for one rank, in the order in which that rank goes through them; empty for all other
    /// calls, and for a rank that isn't there. The trace says which collective was called and not how the library ran it, so this is an
    /// assumption: dissemination for barriers, binomial trees where there is a root, recursive doubling for all-reduce among a power of
    /// two (else to the first and back), a ring for all-gather, pairwise exchange where everybody has something for everybody. Messages
    /// without payload count: their packets need a key as well.
    pub fn steps(&self, rank: usize, record: &TraceRecord) -> Vec<CollectiveStep> {
        let members = self
            .communicators
            .get(rank)
            .and_then(|all| all.get(usize::from(record.communicator)));
        members.map_or_else(Vec::new, |members| {
            collective::steps(
                record.operation,
                rank as u16,
                members,
                record.peer,
                record.bytes,
            )
        })
    }

    /// The same program on a processor that takes so many per cent of the time: its gaps are longer or shorter, nothing else.
    ///
    /// # Errors
    /// [`TraceError`] names the first record whose gap would be longer than [`GAP_NS_MAX`].
    pub fn with_computation(mut self, percent: u32) -> Result<Self, TraceError> {
        for (rank, records) in self.ranks.iter_mut().enumerate() {
            for (index, record) in records.iter_mut().enumerate() {
                let gap_ns = u128::from(record.gap_ns) * u128::from(percent) / 100;
                record.gap_ns = u64::try_from(gap_ns).unwrap_or(u64::MAX);
                if record.gap_ns > GAP_NS_MAX {
                    let got = record.gap_ns;
                    return Err(TraceFault::LongGap { got }.in_record("the gaps", rank, index));
                }
            }
        }
        Ok(self)
    }

    /// How many records there are, all ranks together.
    pub fn records(&self) -> usize {
        self.ranks.iter().map(Vec::len).sum()
    }

    /// Whether everything that is named is there.
    fn check(&self) -> Result<(), TraceError> {
        check_name(&self.name)?;
        check_communicators(self.ranks.len(), &self.communicators)?;
        if self.records() > RECORDS_MAX {
            return Err(TraceFault::TooMany {
                what: "records",
                got: self.records() as u64,
                most: RECORDS_MAX as u64,
            }
            .at("the trace"));
        }
        for (rank, records) in self.ranks.iter().enumerate() {
            for (index, record) in records.iter().enumerate() {
                if let Some((_, fault)) = record.fault(rank, &self.communicators) {
                    return Err(fault.in_record("the trace", rank, index));
                }
            }
        }
        Ok(())
    }
}

impl TraceRecord {
    /// A record of nothing but an operation.
    pub fn new(operation: Operation) -> Self {
        Self {
            operation,
            peer: None,
            bytes: 0,
            tag: 0,
            request: 0,
            communicator: 0,
            gap_ns: 0,
            entry_us: 0,
            duration_us: 0,
        }
    }

    /// What is wrong with it among those communicators, of which each rank has a list.
    fn fault(&self, rank: usize, communicators: &[Vec<Vec<u16>>]) -> Option<(Field, TraceFault)> {
        if self.gap_ns > GAP_NS_MAX {
            let got = self.gap_ns;
            return Some((Field::Gap, TraceFault::LongGap { got }));
        }
        let ranks = communicators.len();
        if let Some(peer) = self.peer
            && usize::from(peer) >= ranks
        {
            let got = i64::from(peer);
            return Some((Field::Peer, TraceFault::NoSuchPeer { got, ranks }));
        }
        if self.operation.is_send() && self.peer.is_none() {
            return Some((Field::Peer, TraceFault::NoSuchPeer { got: -1, ranks }));
        }
        let own = &communicators[rank];
        // Number 0 is everybody, who need not be listed where no collective asks who that is.
        let is_everybody = self.communicator == 0 && !self.operation.is_collective();
        let Some(members) = own.get(usize::from(self.communicator)) else {
            if is_everybody {
                return None;
            }
            let got = self.communicator;
            let known = own.len();
            return Some((
                Field::Communicator,
                TraceFault::NoSuchCommunicator { got, known },
            ));
        };
        let root = self.peer.filter(|_| self.operation.has_root());
        if self.operation.has_root() && !root.is_some_and(|root| members.contains(&root)) {
            let got = self.peer.map_or(-1, i64::from);
            let operation = self.operation.name();
            return Some((Field::Peer, TraceFault::RootOutside { operation, got }));
        }
        None
    }
}

/// Whether a name is short enough to be shown.
fn check_name(name: &str) -> Result<(), TraceError> {
    if name.len() <= NAME_BYTES_MAX {
        return Ok(());
    }
    Err(TraceFault::TooMany {
        what: "bytes",
        got: name.len() as u64,
        most: NAME_BYTES_MAX as u64,
    }
    .at("the name"))
}

/// Whether each rank has a list of communicators, of ranks that are there, each once, itself among them.
fn check_communicators(ranks: usize, communicators: &[Vec<Vec<u16>>]) -> Result<(), TraceError> {
    const PART: &str = "the communicators";
    if ranks > RANKS_MAX {
        return Err(TraceFault::TooMany {
            what: "ranks",
            got: ranks as u64,
            most: RANKS_MAX as u64,
        }
        .at(PART));
    }
    if communicators.len() != ranks {
        return Err(TraceFault::Ranks {
            got: communicators.len(),
            expected: ranks,
        }
        .at(PART));
    }
    let mut members_of_all = 0;
    let mut seen_in = vec![usize::MAX; ranks];
    let mut number = 0;
    for (rank, own) in communicators.iter().enumerate() {
        if own.len() > COMMUNICATORS_MAX {
            return Err(TraceFault::TooMany {
                what: "communicators",
                got: own.len() as u64,
                most: COMMUNICATORS_MAX as u64,
            }
            .in_rank(PART, rank));
        }
        for members in own {
            members_of_all += members.len();
            if members_of_all > MEMBERS_MAX {
                return Err(TraceFault::TooMany {
                    what: "members of communicators",
                    got: members_of_all as u64,
                    most: MEMBERS_MAX as u64,
                }
                .in_rank(PART, rank));
            }
            for member in members {
                let got = i64::from(*member);
                match seen_in.get_mut(usize::from(*member)) {
                    None => return Err(TraceFault::NoSuchPeer { got, ranks }.in_rank(PART, rank)),
                    Some(seen) if *seen == number => {
                        return Err(TraceFault::MemberTwice { got }.in_rank(PART, rank));
                    }
                    Some(seen) => *seen = number,
                }
            }
            if seen_in[rank] != number {
                return Err(TraceFault::NotMember.in_rank(PART, rank));
            }
            number += 1;
        }
    }
    Ok(())
}
