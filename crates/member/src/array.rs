//! An array that the processes of a program share, and its versions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use exoskel_redist::{Layout, PlanSide, PlannedMessage, RedistributionPlan, StridedCopy};
use exoskel_transfer::{ArrayEnd, ConnectionPlace, GoneMember, last_taken, source_version};

use crate::error::MemberError;
use crate::member::{
    Attachment, HeardPartner, Interrupted, MadeConnection, SLICE, UsableConnection,
};
use crate::memory::{Counter, NotedWait, PartMemory};

/// One process's part of an array.
///
/// What it exports are versions, counted from 1. A version is taken by each process at the other end of a connection before the array is
/// written again; what is read is one version, whole, or an error.
#[derive(Debug)]
pub struct SharedArray {
    attachment: Arc<Attachment>,
    name: String,
    layout: Layout,
    memory: Arc<PartMemory>,
    /// The last versions, for whoever asks while somebody waits.
    exported: AtomicU64,
    read: AtomicU64,
    /// Held while somebody waits: nobody waits for it.
    versions: Mutex<Versions>,
}

#[derive(Debug)]
struct Versions {
    is_written: bool,
    is_read: bool,
    outgoing: Vec<OutgoingConnection>,
    incoming: Vec<IncomingConnection>,
}

/// A connection that begins here.
#[derive(Debug)]
struct OutgoingConnection {
    connection: u32,
    every: u64,
    place: u16,
    takers: Option<VersionTakers>,
}

#[derive(Debug)]
struct VersionTakers {
    program: String,
    processes: Vec<(u32, PartMemory)>,
}

/// A connection that ends here.
#[derive(Debug)]
struct IncomingConnection {
    connection: u32,
    every: u64,
    place: u16,
    givers: Option<VersionGivers>,
}

#[derive(Debug)]
struct VersionGivers {
    program: String,
    processes: Vec<Giver>,
}

/// A process at the other end, and the counter of its board that says how far it is.
trait Partner {
    fn rank(&self) -> u32;
    fn board(&self) -> &PartMemory;
}

impl Partner for Giver {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn board(&self) -> &PartMemory {
        &self.memory
    }
}

impl Partner for (u32, PartMemory) {
    fn rank(&self) -> u32 {
        self.0
    }

    fn board(&self) -> &PartMemory {
        &self.1
    }
}

/// Why a counter never comes to where it should.
struct Hopeless {
    gone: GoneMember,
    rank: u32,
    reached: u64,
}

/// Says on the board what is waited for, as long as it lives.
struct WaitNote<'a>(&'a PartMemory);

impl Drop for WaitNote<'_> {
    fn drop(&mut self) {
        self.0.note_no_wait();
    }
}

fn without_memory(rank: u32, program: &str) -> MemberError {
    MemberError::Unfit(format!(
        "rank {rank} of {program} has no memory for its part, or this process can't have it too"
    ))
}

#[derive(Debug)]
struct Giver {
    rank: u32,
    memory: PartMemory,
    copy: StridedCopy,
    bytes: u64,
}

impl SharedArray {
    pub(crate) fn new(
        attachment: Arc<Attachment>,
        name: String,
        layout: Layout,
        memory: PartMemory,
        sources: Vec<ConnectionPlace>,
        targets: Vec<ConnectionPlace>,
    ) -> Self {
        let outgoing = sources.into_iter().map(|place| OutgoingConnection {
            connection: place.connection,
            every: place.every.max(1),
            place: place.place,
            takers: None,
        });
        let incoming = targets.into_iter().map(|place| IncomingConnection {
            connection: place.connection,
            every: place.every.max(1),
            place: place.place,
            givers: None,
        });
        Self {
            exported: AtomicU64::new(0),
            read: AtomicU64::new(0),
            versions: Mutex::new(Versions {
                is_written: false,
                is_read: false,
                outgoing: outgoing.collect(),
                incoming: incoming.collect(),
            }),
            attachment,
            name,
            layout,
            memory: Arc::new(memory),
        }
    }

    /// What the program calls it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the program shares it out.
    #[must_use]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// This process's part.
    #[must_use]
    pub fn memory(&self) -> &Arc<PartMemory> {
        &self.memory
    }

    /// Versions that were exported and read so far.
    #[must_use]
    pub fn versions(&self) -> (u64, u64) {
        (
            self.exported.load(Ordering::Relaxed),
            self.read.load(Ordering::Relaxed),
        )
    }

    fn said(&self) -> String {
        format!("{}.{}", self.attachment.program(), self.name)
    }

    /// What is done with the array, unless another thread, or what a signal has interrupted, does something with it.
    fn access(&self) -> Result<MutexGuard<'_, Versions>, MemberError> {
        match self.versions.try_lock() {
            Ok(versions) => Ok(versions),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(MemberError::Access(
                "the array is in use: another thread waits for it",
            )),
        }
    }

    /// Waits until the last exported version was taken by all who take it: then the array can be written.
    ///
    /// # Errors
    /// [`MemberError`]. Processes that have left take nothing more, which is none.
    pub fn begin_write(&self, interrupted: Interrupted<'_>) -> Result<(), MemberError> {
        let mut versions = self.access()?;
        if versions.is_written {
            return Err(MemberError::Access("the array is being written already"));
        }
        self.until_taken(&mut versions.outgoing, interrupted)?;
        versions.is_written = true;
        Ok(())
    }

    /// Waits until the last exported version was taken by all who take it.
    fn until_taken(
        &self,
        outgoing: &mut [OutgoingConnection],
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let exported = self.exported.load(Ordering::Relaxed);
        for outgoing in outgoing {
            let last = last_taken(exported, outgoing.every);
            if last == 0 {
                continue;
            }
            let wait = NotedWait {
                connection: outgoing.connection,
                version: last,
            };
            if outgoing.takers.is_none() {
                let _note = self.noted(wait);
                let (connection, own) = (outgoing.connection, ArrayEnd::Source);
                let made = self.attachment.connected(connection, own, interrupted)?;
                let takers = match made {
                    MadeConnection::Usable(terms, partners) => self.takers(&terms, partners),
                    MadeConnection::Gone(GoneMember {
                        loss: Some(loss), ..
                    }) => {
                        return Err(MemberError::Lost {
                            array: self.said(),
                            version: exported + 1,
                            loss,
                        });
                    }
                    // Who has left takes nothing.
                    MadeConnection::Gone(gone) => Ok(VersionTakers {
                        program: gone.program,
                        processes: Vec::new(),
                    }),
                };
                let spoils = |error: &MemberError| self.attachment.spoil(connection, own, error);
                outgoing.takers = Some(takers.inspect_err(spoils)?);
            }
            let Some(takers) = &outgoing.takers else {
                continue;
            };
            let taken = Counter::Taken(outgoing.place);
            for taker in &takers.processes {
                let others = &takers.processes;
                let gone = self.until(taker, taken, wait, &takers.program, others, interrupted)?;
                // Who has left takes nothing more.
                let loss = gone.and_then(|hopeless| hopeless.gone.loss);
                if let Some(loss) = loss {
                    return Err(MemberError::Lost {
                        array: self.said(),
                        version: exported + 1,
                        loss,
                    });
                }
            }
        }
        Ok(())
    }

    /// Gives what was written to all who take it, as the next version. Returns its number.
    ///
    /// # Errors
    /// If [`begin_write`](Self::begin_write) was not called.
    pub fn export(&self) -> Result<u64, MemberError> {
        let mut versions = self.access()?;
        if !versions.is_written {
            return Err(MemberError::Access("the array isn't being written"));
        }
        versions.is_written = false;
        let exported = self.exported.fetch_add(1, Ordering::Relaxed) + 1;
        self.memory.store(Counter::Exported, exported);
        Ok(exported)
    }

    /// Ends a write without a new version.
    pub fn abandon(&self) {
        if let Ok(mut versions) = self.access() {
            versions.is_written = false;
        }
    }

    /// Waits for the next version over each connection that ends here, and copies it. Returns its number.
    ///
    /// # Errors
    /// [`MemberError`]. The array's contents are then of no version, and the next call tries the same one again.
    pub fn begin_read(&self, interrupted: Interrupted<'_>) -> Result<u64, MemberError> {
        let mut access = self.access()?;
        let versions = &mut *access;
        if versions.is_read || versions.is_written {
            return Err(MemberError::Access("the array is in use already"));
        }
        if versions.incoming.is_empty() {
            return Err(MemberError::NotConnected(self.said()));
        }
        // What it has given itself must have been taken before it is written to.
        self.until_taken(&mut versions.outgoing, interrupted)?;
        let version = self.read.load(Ordering::Relaxed) + 1;
        // All of them first: a wait that is broken off, and tried again, has let go of nothing.
        for incoming in &mut versions.incoming {
            self.until_given(incoming, version, interrupted)?;
        }
        for incoming in &versions.incoming {
            let begin = Instant::now();
            let mut bytes = 0;
            for giver in incoming.givers.iter().flat_map(|givers| &givers.processes) {
                self.memory.copy_from(&giver.memory, |source, target| {
                    giver.copy.run(source, target);
                });
                bytes += giver.bytes;
            }
            let place = incoming.place;
            let time = begin.elapsed().as_nanos() as u64;
            self.memory.add(Counter::Bytes(place), bytes);
            self.memory.add(Counter::Nanoseconds(place), time);
            let taken = source_version(version, incoming.every);
            self.memory.store(Counter::Taken(place), taken);
        }
        self.read.store(version, Ordering::Relaxed);
        versions.is_read = true;
        Ok(version)
    }

    /// Waits until all processes at the other end of a connection have exported a version.
    fn until_given(
        &self,
        incoming: &mut IncomingConnection,
        version: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let wanted = source_version(version, incoming.every);
        let wait = NotedWait {
            connection: incoming.connection,
            version: wanted,
        };
        if incoming.givers.is_none() {
            let _note = self.noted(wait);
            let (connection, own) = (incoming.connection, ArrayEnd::Target);
            let made = self.attachment.connected(connection, own, interrupted)?;
            let givers = match made {
                MadeConnection::Usable(terms, partners) => self.givers(&terms, partners),
                MadeConnection::Gone(gone) => {
                    let hopeless = Hopeless {
                        rank: gone.rank,
                        gone,
                        reached: 0,
                    };
                    return Err(self.ended(hopeless, version, wanted));
                }
            };
            let spoils = |error: &MemberError| self.attachment.spoil(connection, own, error);
            incoming.givers = Some(givers.inspect_err(spoils)?);
        }
        let Some(givers) = &incoming.givers else {
            return Ok(());
        };
        for giver in &givers.processes {
            let (program, others) = (&givers.program, &givers.processes);
            let exported = Counter::Exported;
            let gone = self.until(giver, exported, wait, program, others, interrupted)?;
            if let Some(hopeless) = gone {
                return Err(self.ended(hopeless, version, wanted));
            }
        }
        Ok(())
    }

    /// Why a version never comes, which the source counts as `wanted`.
    fn ended(&self, hopeless: Hopeless, version: u64, wanted: u64) -> MemberError {
        let array = self.said();
        match hopeless.gone.loss {
            None => MemberError::Ended {
                array,
                program: hopeless.gone.program,
                rank: hopeless.rank,
                version: wanted,
                exported: hopeless.reached,
            },
            Some(loss) => MemberError::Lost {
                array,
                version,
                loss,
            },
        }
    }

    /// Lets the keeper see what is waited for, until what this returns is dropped.
    fn noted(&self, wait: NotedWait) -> WaitNote<'_> {
        self.memory.note_wait(wait);
        WaitNote(&self.memory)
    }

    /// Ends a read.
    pub fn end_read(&self) {
        if let Ok(mut versions) = self.access() {
            versions.is_read = false;
        }
    }

    /// Who takes from this process.
    fn takers(
        &self,
        terms: &UsableConnection,
        partners: Vec<HeardPartner>,
    ) -> Result<VersionTakers, MemberError> {
        let (rank, side) = (self.attachment.rank(), PlanSide::Source);
        let plan =
            RedistributionPlan::new(&terms.source, &terms.target, &terms.mapping, side, rank);
        let processes = partners.into_iter().map(|one| (one.rank, one.memory));
        let processes: Vec<(u32, PartMemory)> = processes.collect();
        let mut ranks = plan.messages().map(PlannedMessage::rank);
        let is_missing = |rank: &u32| processes.iter().all(|(other, _)| other != rank);
        match ranks.find(is_missing) {
            Some(rank) => Err(without_memory(rank, &terms.other)),
            None => Ok(VersionTakers {
                program: terms.other.clone(),
                processes,
            }),
        }
    }

    /// Who sends what to this process, from the one behind it on: so that not all ask the same one first.
    fn givers(
        &self,
        terms: &UsableConnection,
        partners: Vec<HeardPartner>,
    ) -> Result<VersionGivers, MemberError> {
        let rank = self.attachment.rank();
        let plan = RedistributionPlan::new(
            &terms.source,
            &terms.target,
            &terms.mapping,
            PlanSide::Target,
            rank,
        );
        let target = self.layout.local_strides(rank);
        let mut memories: BTreeMap<u32, PartMemory> = partners
            .into_iter()
            .map(|one| (one.rank, one.memory))
            .collect();
        let giver = |message: PlannedMessage<'_>| {
            let source = terms.source.local_strides(message.rank());
            let memory = memories
                .remove(&message.rank())
                .ok_or_else(|| without_memory(message.rank(), &terms.other))?;
            Ok(Giver {
                rank: message.rank(),
                memory,
                copy: StridedCopy::between(message, &source, &target),
                bytes: message.bytes(),
            })
        };
        let processes: Result<Vec<Giver>, MemberError> = plan.messages().map(giver).collect();
        let mut processes = processes?;
        let first = processes.partition_point(|giver| giver.rank < rank);
        let count = processes.len();
        processes.rotate_left(first % count.max(1));
        Ok(VersionGivers {
            program: terms.other.clone(),
            processes,
        })
    }

    /// Waits until a partner's counter has come to `wanted`. Says why it, or another of the connection's, never will.
    fn until<Process: Partner>(
        &self,
        partner: &Process,
        counter: Counter,
        wait: NotedWait,
        program: &str,
        all: &[Process],
        interrupted: Interrupted<'_>,
    ) -> Result<Option<Hopeless>, MemberError> {
        let (board, wanted) = (partner.board(), wait.version);
        let mut note = None;
        loop {
            let seen = board.load(counter);
            if seen >= wanted {
                return Ok(None);
            }
            note.get_or_insert_with(|| self.noted(wait));
            let hopeless = self.hopeless(partner, counter, wanted, program, all);
            if hopeless.is_some() {
                return Ok(hopeless);
            }
            board.wait(counter, seen, SLICE);
            if board.load(counter) == seen {
                self.attachment.listen(Duration::ZERO)?;
                if interrupted() {
                    return Err(MemberError::Interrupted);
                }
            }
        }
    }

    /// The first of the connection's processes that is gone, and has not come as far as it should.
    ///
    /// One that takes and has left in good order is no reason not to wait for others: only its own counter never comes there.
    fn hopeless<Process: Partner>(
        &self,
        partner: &Process,
        counter: Counter,
        wanted: u64,
        program: &str,
        all: &[Process],
    ) -> Option<Hopeless> {
        if !self.attachment.is_anybody_gone() {
            return None;
        }
        let of = |process: &Process| {
            // In this order: what a process did before it went is seen behind the word that it is gone.
            let gone = self.attachment.gone(program, process.rank())?;
            let reached = process.board().load(counter);
            let matters = gone.loss.is_some()
                || counter == Counter::Exported
                || process.rank() == partner.rank();
            (reached < wanted && matters).then_some(Hopeless {
                gone,
                rank: process.rank(),
                reached,
            })
        };
        let mut lost = all.iter().filter_map(of).collect::<Vec<_>>();
        // A loss says more than that somebody has left.
        lost.sort_by_key(|hopeless| hopeless.gone.loss.is_none());
        lost.into_iter().next()
    }
}
