//! An array that the processes of a program share, and its versions.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use exoskel_redist::{Layout, PlanSide, PlannedMessage, StridedCopy};
use exoskel_transfer::{
    ArrayEnd, ConnectionPlace, GoneMember, MemberMessage, Variable, last_taken, source_version,
};

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
    /// Whether the keeper is told of each version.
    is_watched: bool,
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
    /// Its place on our own board.
    source_place: u16,
    takers: Option<VersionTakers>,
}

#[derive(Debug)]
struct VersionTakers {
    program: String,
    processes: Vec<(u32, PartMemory)>,
    /// Those on other hosts.
    elsewhere: Vec<u32>,
}

/// A connection that ends here.
#[derive(Debug)]
struct IncomingConnection {
    connection: u32,
    every: u64,
    place: u16,
    /// The last of the source's versions that was asked of the keeper.
    wanted: u64,
    /// The keeper was told that it is wanted no more, and has not answered yet.
    is_forgoing: bool,
    givers: Option<VersionGivers>,
}

#[derive(Debug)]
struct VersionGivers {
    array: Variable,
    processes: Vec<Giver>,
    elsewhere: GiversElsewhere,
}

/// Processes on other hosts, whose versions the keeper writes into our part.
#[derive(Debug, Default)]
struct GiversElsewhere {
    ranks: Vec<u32>,
    /// Bytes of a version.
    bytes: u64,
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
        is_watched: bool,
    ) -> Self {
        let outgoing = sources.into_iter().map(|place| OutgoingConnection {
            connection: place.connection,
            every: place.every.max(1),
            place: place.place,
            source_place: place.source_place,
            takers: None,
        });
        let incoming = targets.into_iter().map(|place| IncomingConnection {
            connection: place.connection,
            every: place.every.max(1),
            place: place.place,
            wanted: 0,
            is_forgoing: false,
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
            is_watched,
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
        self.stop_coming(&mut versions.incoming, interrupted)?;
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
                outgoing.takers = Some(match made {
                    MadeConnection::Usable(terms, partners) => self.takers(terms, partners),
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
                    MadeConnection::Gone(gone) => VersionTakers {
                        program: gone.program,
                        processes: Vec::new(),
                        elsewhere: Vec::new(),
                    },
                });
            }
            let Some(takers) = &outgoing.takers else {
                continue;
            };
            let program = &takers.program;
            let counter = Counter::Taken(outgoing.place);
            let lost = |rank, taken: u64| {
                let gone = self.attachment.gone(program, rank)?;
                // Who has left takes nothing more.
                (taken < last && gone.loss.is_some()).then_some(Hopeless {
                    gone,
                    rank,
                    reached: taken,
                })
            };
            // A loss of any of them is said, also to who waits for another one.
            let hopeless = || {
                let mut here = takers.processes.iter();
                let here = here.find_map(|(rank, board)| lost(*rank, board.load(counter)));
                let mut elsewhere = takers.elsewhere.iter();
                here.or_else(|| {
                    let released = self.memory.load(Counter::Released(outgoing.source_place));
                    elsewhere.find_map(|rank| lost(*rank, released))
                })
            };
            let here = takers.processes.iter();
            let mut boards: Vec<_> = here
                .map(|(rank, board)| (Some(*rank), board, counter))
                .collect();
            if !takers.elsewhere.is_empty() {
                boards.push((None, &self.memory, Counter::Released(outgoing.source_place)));
            }
            for (rank, board, counter) in boards {
                let has_left = || {
                    let rank = rank?;
                    let gone = self.attachment.gone(program, rank)?;
                    let reached = board.load(counter);
                    Some(Hopeless {
                        gone,
                        rank,
                        reached,
                    })
                };
                let hopeless = || hopeless().or_else(has_left);
                let gone = self.until(board, counter, wait, &hopeless, interrupted)?;
                if let Some(loss) = gone.and_then(|hopeless| hopeless.gone.loss) {
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
        if self.is_watched && !versions.outgoing.is_empty() {
            let said = MemberMessage::Exported {
                name: self.name.clone(),
                version: exported,
            };
            let told = self.attachment.tell(&said);
            told.map_err(|error| self.last_words(error, exported))?;
        }
        Ok(exported)
    }

    /// The loss that the keeper has told of before it ended, if that is what has happened.
    fn last_words(&self, error: MemberError, version: u64) -> MemberError {
        if !matches!(error, MemberError::KeeperLost(_)) {
            return error;
        }
        // Behind them is the end, which is known.
        let _ = self.attachment.listen(Duration::ZERO);
        match self.attachment.loss() {
            Some(loss) => MemberError::Lost {
                array: self.said(),
                version,
                loss,
            },
            None => error,
        }
    }

    /// Sees to it that nothing is written into our part that was asked for by a read that has failed.
    fn stop_coming(
        &self,
        connections: &mut [IncomingConnection],
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let is_coming = |incoming: &IncomingConnection| {
            incoming.wanted > self.memory.load(Counter::Arrived(incoming.place))
        };
        if !connections.iter().any(is_coming) {
            return Ok(());
        }
        let version = self.read.load(Ordering::Relaxed) + 1;
        let is_over = |incoming: &IncomingConnection| {
            let wanted = source_version(version, incoming.every);
            let givers = incoming.givers.as_ref();
            givers.is_some_and(|givers| self.never_given(givers, incoming, wanted).is_some())
        };
        if !connections.iter().any(is_over) {
            return Err(MemberError::Access(
                "a read was broken off, and its version is still on its way into the array: read again first",
            ));
        }
        // No version is ever whole again.
        for incoming in connections
            .iter_mut()
            .filter(|incoming| is_coming(incoming))
        {
            let (connection, version) = (incoming.connection, incoming.wanted);
            if !incoming.is_forgoing {
                let forgo = MemberMessage::Forgo {
                    connection,
                    version,
                };
                self.attachment.tell(&forgo)?;
                incoming.is_forgoing = true;
            }
            let attachment = &self.attachment;
            attachment.until_forgone(connection, version, interrupted)?;
            (incoming.wanted, incoming.is_forgoing) = (0, false);
        }
        Ok(())
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
        for incoming in &mut versions.incoming {
            self.want(incoming, version, interrupted)?;
        }
        // All of them first: a wait that is broken off, and tried again, has let go of nothing.
        for incoming in &versions.incoming {
            self.until_given(incoming, version, interrupted)?;
        }
        for incoming in &versions.incoming {
            let begin = Instant::now();
            let givers = incoming.givers.as_ref();
            let mut bytes = givers.map_or(0, |givers| givers.elsewhere.bytes);
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

    /// Lets the keeper write into our part what processes on other hosts give of a version.
    fn want(
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
            incoming.givers = Some(givers);
        }
        let is_here = incoming
            .givers
            .as_ref()
            .is_none_or(|givers| givers.elsewhere.ranks.is_empty());
        if is_here || incoming.wanted >= wanted {
            return Ok(());
        }
        let want = MemberMessage::Want {
            connection: incoming.connection,
            version: wanted,
        };
        let told = self.attachment.tell(&want);
        told.map_err(|error| self.last_words(error, version))?;
        incoming.wanted = wanted;
        Ok(())
    }

    /// Whose end means that a version never comes.
    fn never_given(
        &self,
        givers: &VersionGivers,
        incoming: &IncomingConnection,
        wanted: u64,
    ) -> Option<Hopeless> {
        let arrived = Counter::Arrived(incoming.place);
        let gone = |rank, reached: &dyn Fn(&GoneMember) -> u64| {
            // In this order: what a process did before it went is seen behind the word that it is gone.
            let gone = self.attachment.gone(&givers.array.program, rank)?;
            let reached = reached(&gone);
            (reached < wanted).then_some(Hopeless {
                gone,
                rank,
                reached,
            })
        };
        let here = givers.processes.iter();
        let here =
            here.filter_map(|giver| gone(giver.rank, &|_| giver.memory.load(Counter::Exported)));
        // What its keeper has will come.
        let left = |gone: &GoneMember| gone.exported.get(&givers.array.name).copied();
        let elsewhere = givers.elsewhere.ranks.iter().filter_map(|rank| {
            let ended = gone(*rank, &|gone| left(gone).unwrap_or(0));
            let without_keeper = || {
                let mut gone = self.attachment.gone(&givers.array.program, *rank)?;
                gone.loss = Some(gone.lost_since.take()?);
                Some(Hopeless {
                    reached: left(&gone).unwrap_or(0),
                    gone,
                    rank: *rank,
                })
            };
            let hopeless = ended.or_else(without_keeper);
            hopeless.filter(|_| self.memory.load(arrived) < wanted)
        });
        // A loss says more than that somebody has left.
        here.chain(elsewhere)
            .min_by_key(|hopeless| hopeless.gone.loss.is_none())
    }

    /// Waits until all processes at the other end of a connection have exported a version, and what comes from other hosts is there.
    fn until_given(
        &self,
        incoming: &IncomingConnection,
        version: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        let Some(givers) = &incoming.givers else {
            return Ok(());
        };
        let wanted = source_version(version, incoming.every);
        let wait = NotedWait {
            connection: incoming.connection,
            version: wanted,
        };
        let arrived = Counter::Arrived(incoming.place);
        let hopeless = || self.never_given(givers, incoming, wanted);
        let here = givers.processes.iter();
        let mut boards: Vec<_> = here
            .map(|giver| (&giver.memory, Counter::Exported))
            .collect();
        if !givers.elsewhere.ranks.is_empty() {
            boards.push((&self.memory, arrived));
        }
        for (board, counter) in boards {
            let gone = self.until(board, counter, wait, &hopeless, interrupted)?;
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
    fn takers(&self, terms: UsableConnection, partners: Vec<HeardPartner>) -> VersionTakers {
        let plan = terms.plan(PlanSide::Source, &self.layout, self.attachment.rank());
        let ranks = plan.messages().map(PlannedMessage::rank);
        let is_here = |rank: &u32| partners.iter().any(|one| one.rank == *rank);
        VersionTakers {
            program: terms.other.program,
            elsewhere: ranks.filter(|rank| !is_here(rank)).collect(),
            processes: partners
                .into_iter()
                .map(|one| (one.rank, one.memory))
                .collect(),
        }
    }

    /// Who sends what to this process, from the one behind it on: so that not all ask the same one first.
    fn givers(&self, terms: &UsableConnection, partners: Vec<HeardPartner>) -> VersionGivers {
        let rank = self.attachment.rank();
        let plan = terms.plan(PlanSide::Target, &self.layout, rank);
        let target = self.layout.local_strides(rank);
        let mut memories: BTreeMap<u32, PartMemory> = partners
            .into_iter()
            .map(|one| (one.rank, one.memory))
            .collect();
        let mut processes = Vec::new();
        let mut elsewhere = GiversElsewhere::default();
        for message in plan.messages() {
            let Some(memory) = memories.remove(&message.rank()) else {
                elsewhere.ranks.push(message.rank());
                elsewhere.bytes += message.bytes();
                continue;
            };
            let source = terms.source.local_strides(message.rank());
            processes.push(Giver {
                rank: message.rank(),
                memory,
                copy: StridedCopy::between(message, &source, &target),
                bytes: message.bytes(),
            });
        }
        let first = processes.partition_point(|giver| giver.rank < rank);
        let count = processes.len();
        processes.rotate_left(first % count.max(1));
        VersionGivers {
            array: terms.other.clone(),
            processes,
            elsewhere,
        }
    }

    /// Waits until a counter has come to `wanted`. Says why it never will, if that is so.
    fn until(
        &self,
        board: &PartMemory,
        counter: Counter,
        wait: NotedWait,
        hopeless: &dyn Fn() -> Option<Hopeless>,
        interrupted: Interrupted<'_>,
    ) -> Result<Option<Hopeless>, MemberError> {
        let wanted = wait.version;
        let mut note = None;
        loop {
            let seen = board.load(counter);
            if seen >= wanted {
                return Ok(None);
            }
            note.get_or_insert_with(|| self.noted(wait));
            if self.attachment.is_anybody_gone()
                && let Some(hopeless) = hopeless()
            {
                return Ok(Some(hopeless));
            }
            board.wait(counter, seen, SLICE);
            if board.load(counter) == seen {
                match self.attachment.listen(Duration::ZERO) {
                    Ok(()) => {}
                    // Its last words may say who was lost.
                    Err(MemberError::KeeperLost(why)) => {
                        let lost = MemberError::KeeperLost(why);
                        return hopeless().map(Some).ok_or(lost);
                    }
                    Err(error) => return Err(error),
                }
                if interrupted() {
                    return Err(MemberError::Interrupted);
                }
            }
        }
    }
}
