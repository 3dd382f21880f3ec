//! A process of a parallel program, attached to its keeper.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use exoskel_redist::{IndexSets, Layout, Mapping, PlanSide, RedistributionPlan, SetsOfAxes};
use exoskel_transfer::{
    ArrayEnd, AttachRequest, ConnectionPlace, GoneMember, IndexPart, IndexParts, KeeperMessage,
    LayoutDescription, Loss, MemberMessage, Variable,
};

use crate::array::{ArrayContents, SharedArray};
use crate::error::MemberError;
use crate::keeper_socket::{HeardMessage, KeeperSocket, KeeperVoice};
use crate::memory::{OwnMemory, PartMemory};
use crate::memory_in_use::MemoryInUse;

/// How long a wait goes on before the keeper's socket and the caller's signals are looked at.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// Says whether the caller wants to wait on: called between slices of a wait.
pub type Interrupted<'a> = &'a dyn Fn() -> bool;

/// A process of a parallel program.
#[derive(Clone, Debug)]
pub struct Member {
    pub(crate) attachment: Arc<Attachment>,
}

/// What a member and its arrays share.
#[derive(Debug)]
pub(crate) struct Attachment {
    program: String,
    rank: u32,
    size: u32,
    /// One thread at a time hears.
    socket: Mutex<KeeperSocket>,
    voice: Mutex<KeeperVoice>,
    heard: Mutex<HeardSoFar>,
    /// One array at a time is asked for.
    asking: Mutex<()>,
    has_left: Arc<AtomicBool>,
}

/// What the keeper has said and nobody has taken yet.
#[derive(Debug, Default)]
struct HeardSoFar {
    is_attached: bool,
    refusal: Option<String>,
    /// The last one, for who goes on all the same.
    refused_before: Option<String>,
    memories: Vec<GivenMemory>,
    connections: BTreeMap<(u32, bool), HeardConnection>,
    gone: BTreeMap<(String, u32), GoneMember>,
    /// The last versions that processes on other hosts have given all of, though their keepers are gone: by connections and ranks.
    came: BTreeMap<(u32, u32), u64>,
    /// Versions that don't come any more, by connections.
    forgone: BTreeMap<u32, u64>,
    /// The keeper is gone: why.
    end: Option<String>,
}

#[derive(Debug)]
struct GivenMemory {
    name: String,
    bytes: u64,
    sources: Vec<ConnectionPlace>,
    targets: Vec<ConnectionPlace>,
    is_watched: bool,
    descriptor: OwnedFd,
}

/// A connection as far as the keeper has told of it.
#[derive(Debug, Default)]
struct HeardConnection {
    partners: Vec<HeardPartner>,
    /// Index sets at the other end, as far as this process needs them.
    indices: IndexParts,
    connected: Option<UsableConnection>,
    failed: Option<(String, Option<GoneMember>)>,
}

/// What a connection has become.
#[derive(Debug)]
pub(crate) enum MadeConnection {
    /// It can be used.
    Usable(UsableConnection, Vec<HeardPartner>),
    /// A process has gone before it described the array at the other end, and what the coupler says of that.
    Gone(GoneMember, String),
}

/// The memory of a process at the other end.
#[derive(Debug)]
pub(crate) struct HeardPartner {
    pub(crate) rank: u32,
    pub(crate) memory: PartMemory,
}

/// What a connection moves.
#[derive(Clone, Debug)]
pub(crate) struct UsableConnection {
    pub(crate) source: Layout,
    pub(crate) target: Layout,
    pub(crate) mapping: Mapping,
    /// The array at the other end.
    pub(crate) other: Variable,
}

impl UsableConnection {
    /// One process's own part, of an array with this layout: its own index sets are known there.
    pub(crate) fn plan(&self, side: PlanSide, own: &Layout, rank: u32) -> RedistributionPlan {
        let (source, target) = match side {
            PlanSide::Source => (own, &self.target),
            PlanSide::Target => (&self.source, own),
        };
        RedistributionPlan::new(source, target, &self.mapping, side, rank)
    }
}

impl Member {
    /// Attaches the process `rank` of `size` of a program to the keeper at this socket.
    ///
    /// # Errors
    /// [`MemberError`]: no keeper, or it refuses.
    pub fn attach(
        keeper: &Path,
        program: &str,
        rank: u32,
        size: u32,
        interrupted: Interrupted<'_>,
    ) -> Result<Self, MemberError> {
        let (socket, voice) = KeeperSocket::connect(keeper)?;
        voice.say(&MemberMessage::Attach(AttachRequest::new(
            program, rank, size,
        )))?;
        let attachment = Arc::new(Attachment {
            program: program.to_owned(),
            rank,
            size,
            socket: Mutex::new(socket),
            voice: Mutex::new(voice),
            heard: Mutex::default(),
            asking: Mutex::default(),
            has_left: Arc::default(),
        });
        attachment.wait_for(interrupted, |heard| heard.is_attached.then_some(()))?;
        Ok(Self { attachment })
    }

    /// The program's name.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.attachment.program
    }

    /// Which process this is.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.attachment.rank
    }

    /// How many processes the program has.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.attachment.size
    }

    /// Describes an array and gets memory for this process's part of it.
    ///
    /// # Errors
    /// [`MemberError`]: the layout is not what others say, or there is no memory.
    pub fn array(
        &self,
        name: &str,
        layout: &Layout,
        interrupted: Interrupted<'_>,
    ) -> Result<SharedArray, MemberError> {
        self.make_array(name, layout, None, interrupted)
    }

    /// The same, where the contents are in memory of the caller's own, in the layout's order and without gaps.
    ///
    /// # Errors
    /// As [`array`](Self::array), if the memory is not as large as the layout says, and if another array of this process has some of it.
    pub fn array_in(
        &self,
        name: &str,
        layout: &Layout,
        own: OwnMemory,
        interrupted: Interrupted<'_>,
    ) -> Result<SharedArray, MemberError> {
        self.make_array(name, layout, Some(own), interrupted)
    }

    fn make_array(
        &self,
        name: &str,
        layout: &Layout,
        own: Option<OwnMemory>,
        interrupted: Interrupted<'_>,
    ) -> Result<SharedArray, MemberError> {
        let attachment = &self.attachment;
        let asking = held(&attachment.asking);
        for part in IndexPart::of(&self.own_sets(layout)?) {
            let name = name.to_owned();
            attachment.tell(&MemberMessage::Indices { name, part })?;
        }
        attachment.tell(&MemberMessage::Array {
            name: name.to_owned(),
            layout: LayoutDescription::of(layout),
        })?;
        let given = attachment.wait_for(interrupted, |heard| {
            let mut memories = heard.memories.iter();
            let place = memories.position(|given| given.name == name)?;
            Some(heard.memories.swap_remove(place))
        })?;
        drop(asking);
        let memory = PartMemory::own(&given.descriptor, given.bytes)?;
        if own.as_ref().is_some_and(|own| own.len() != memory.len()) {
            return Err(MemberError::Access(
                "the array's memory has not as many bytes as its layout says",
            ));
        }
        let (first, bytes) = match &own {
            Some(own) => (own.first_byte(), own.len()),
            None => (memory.first_byte(), memory.len()),
        };
        let said = format!("{}.{name}", attachment.program);
        let (is_read_into, has_left) = (!given.targets.is_empty(), &attachment.has_left);
        let in_use = MemoryInUse::new(&said, first, bytes, is_read_into, has_left)?;
        let memory = ArrayContents {
            shared: memory,
            own,
            in_use,
        };
        Ok(SharedArray::new(
            Arc::clone(attachment),
            given.name,
            layout.clone(),
            memory,
            given.sources,
            given.targets,
            given.is_watched,
        ))
    }

    /// This process's index set on each axis that has such.
    fn own_sets(&self, layout: &Layout) -> Result<SetsOfAxes, MemberError> {
        let coordinates = layout.coordinates(self.rank());
        let own = layout.index_sets().map(|(axis, sets)| {
            let process = coordinates[axis];
            let set = sets.set(process).ok_or_else(|| {
                let rank = self.rank();
                MemberError::Unfit(format!(
                    "the indices of rank {rank} on axis {axis} are missing"
                ))
            })?;
            Ok((axis, BTreeMap::from([(process, set.clone())])))
        });
        own.collect()
    }

    /// Goes. What was exported stays until it was taken; `error` is what ends the process early, if anything does.
    ///
    /// # Errors
    /// If the keeper is gone already.
    pub fn leave(&self, error: Option<String>) -> Result<(), MemberError> {
        self.attachment.has_left.store(true, Ordering::Relaxed);
        held(&self.attachment.voice).end(&MemberMessage::Leave { error })
    }
}

impl Member {
    /// In a forked child: it is the parent that is the member.
    pub fn forget(&self) {
        // Whoever has a lock is a thread that the child hasn't.
        if let Ok(mut socket) = self.attachment.socket.try_lock() {
            socket.forget();
        }
        if let Ok(mut voice) = self.attachment.voice.try_lock() {
            voice.forget();
        }
    }
}

impl Attachment {
    pub(crate) fn program(&self) -> &str {
        &self.program
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Tells the keeper something.
    pub(crate) fn tell(&self, message: &MemberMessage) -> Result<(), MemberError> {
        let said = held(&self.voice).say(message);
        said.map_err(|error| match error {
            MemberError::KeeperLost(why) => held(&self.heard).keeper_lost(why),
            error => error,
        })
    }

    /// Takes in what the keeper says within this time.
    pub(crate) fn listen(&self, time: Duration) -> Result<(), MemberError> {
        let mut socket = held(&self.socket);
        let mut time = time;
        loop {
            match socket.hear(time) {
                Ok(None) => return Ok(()),
                Ok(Some(message)) => held(&self.heard).take(message)?,
                Err(MemberError::KeeperLost(why)) => {
                    held(&self.heard).end = Some(why.clone());
                    return Err(MemberError::KeeperLost(why));
                }
                Err(error) => return Err(error),
            }
            // What else has come already, and no more waiting.
            time = Duration::ZERO;
        }
    }

    /// Waits until the keeper has said something.
    fn wait_for<Found>(
        &self,
        interrupted: Interrupted<'_>,
        mut find: impl FnMut(&mut HeardSoFar) -> Option<Found>,
    ) -> Result<Found, MemberError> {
        loop {
            {
                let mut heard = held(&self.heard);
                if let Some(found) = find(&mut heard) {
                    return Ok(found);
                }
                if let Some(reason) = heard.refusal.take() {
                    return Err(MemberError::Refused(reason));
                }
                if let Some(why) = &heard.end {
                    return Err(heard.keeper_lost(why.clone()));
                }
            }
            if interrupted() {
                return Err(MemberError::Interrupted);
            }
            match self.listen(SLICE) {
                // What it said before it went may say why.
                Ok(()) | Err(MemberError::KeeperLost(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until a connection can be used, and takes the memory of those at its other end.
    pub(crate) fn connected(
        &self,
        connection: u32,
        own: ArrayEnd,
        interrupted: Interrupted<'_>,
    ) -> Result<MadeConnection, MemberError> {
        let find = |heard: &mut HeardSoFar| heard.made(connection, own, &self.program);
        self.wait_for(interrupted, find)?
    }

    /// The same if it can be used already.
    pub(crate) fn connected_already(
        &self,
        connection: u32,
        own: ArrayEnd,
    ) -> Option<Result<MadeConnection, MemberError>> {
        // An end of the keeper is said by what waits next.
        let _ = self.listen(Duration::ZERO);
        held(&self.heard).made(connection, own, &self.program)
    }

    /// Waits until the keeper writes nothing of a version any more.
    pub(crate) fn until_forgone(
        &self,
        connection: u32,
        version: u64,
        interrupted: Interrupted<'_>,
    ) -> Result<(), MemberError> {
        self.wait_for(interrupted, |heard| {
            let found = heard.forgone.remove(&connection);
            found.filter(|found| *found == version).map(|_| ())
        })
    }

    /// Whether a process on another host has given all that it gives of a version, though its keeper is gone.
    pub(crate) fn has_come(&self, connection: u32, rank: u32, version: u64) -> bool {
        let heard = held(&self.heard);
        heard.came.get(&(connection, rank)) == Some(&version)
    }

    /// The loss that the keeper has told of, if it has of any.
    pub(crate) fn loss(&self) -> Option<Loss> {
        let heard = held(&self.heard);
        heard.gone.values().find_map(|gone| gone.loss.clone())
    }

    /// Whether any process at the other ends is gone.
    pub(crate) fn is_anybody_gone(&self) -> bool {
        !held(&self.heard).gone.is_empty()
    }

    /// What became of a process at the other end, if it is gone.
    pub(crate) fn gone(&self, program: &str, rank: u32) -> Option<GoneMember> {
        let heard = held(&self.heard);
        heard.gone.get(&(program.to_owned(), rank)).cloned()
    }
}

impl HeardSoFar {
    /// What a connection of this program has become, if that is known.
    fn made(
        &mut self,
        connection: u32,
        own: ArrayEnd,
        program: &str,
    ) -> Option<Result<MadeConnection, MemberError>> {
        let place = (connection, own == ArrayEnd::Source);
        let found = self.connections.get_mut(&place)?;
        match &found.failed {
            // One of the own program that left in good order is no word about the other one.
            Some((reason, Some(gone))) if gone.loss.is_some() || gone.program != program => {
                return Some(Ok(MadeConnection::Gone(gone.clone(), reason.clone())));
            }
            Some((reason, _)) => return Some(Err(MemberError::Unfit(reason.clone()))),
            None => {}
        }
        let terms = found.connected.take()?;
        let partners = std::mem::take(&mut found.partners);
        Some(Ok(MadeConnection::Usable(terms, partners)))
    }

    /// The keeper lets go of a member that it has refused, so that is why.
    fn keeper_lost(&self, why: String) -> MemberError {
        match &self.refused_before {
            Some(reason) => MemberError::Refused(format!(
                "the keeper has refused this process, which is no member any more: {reason}"
            )),
            None => MemberError::KeeperLost(why),
        }
    }

    fn take(&mut self, (message, descriptor): HeardMessage) -> Result<(), MemberError> {
        let without = || MemberError::Keeper("memory without a descriptor".to_owned());
        match message {
            KeeperMessage::Attached => self.is_attached = true,
            KeeperMessage::Refused { reason } => {
                self.refused_before = Some(reason.clone());
                self.refusal = Some(reason);
            }
            KeeperMessage::Memory {
                name,
                bytes,
                sources,
                targets,
                is_watched,
            } => self.memories.push(GivenMemory {
                name,
                bytes,
                sources,
                targets,
                is_watched,
                descriptor: descriptor.ok_or_else(without)?,
            }),
            KeeperMessage::Indices {
                connection,
                own,
                part,
            } => {
                let taken = self.connection(connection, own).indices.take(&part);
                taken.map_err(MemberError::Keeper)?;
            }
            KeeperMessage::Partner {
                connection,
                own,
                rank,
                bytes,
            } => {
                let descriptor = descriptor.ok_or_else(without)?;
                let memory = PartMemory::of_another(&descriptor, bytes);
                let known = self.connection(connection, own);
                match memory {
                    Ok(memory) => known.partners.push(HeardPartner { rank, memory }),
                    // Without it, it would be waited for as one on another host.
                    Err(error) => {
                        let reason = format!(
                            "this process can't have the memory of rank {rank} at the other end: {error}"
                        );
                        known.failed = Some((reason, None));
                    }
                }
            }
            KeeperMessage::Connected {
                connection,
                own,
                terms,
            } => {
                let mut source = terms.source.layout().map_err(MemberError::Keeper)?;
                let mut target = terms.target.layout().map_err(MemberError::Keeper)?;
                let known = std::mem::take(&mut self.connection(connection, own).indices);
                let other = match own {
                    ArrayEnd::Source => &mut target,
                    ArrayEnd::Target => &mut source,
                };
                for (axis, sets) in known.sets().map_err(MemberError::Keeper)? {
                    let sets = IndexSets::of_some(sets);
                    let has_sets = other.index_sets().any(|(known, _)| known == axis);
                    let made = has_sets.then(|| other.with_index_sets(axis, sets));
                    let no_sets = || MemberError::Keeper(format!("index sets for axis {axis}"));
                    let made = made.ok_or_else(no_sets)?;
                    *other = made.map_err(|error| MemberError::Keeper(error.to_string()))?;
                }
                let mapping = Mapping::new(
                    &source,
                    &target,
                    terms.select.as_deref(),
                    terms.into.as_deref(),
                    terms.permute.as_deref(),
                );
                let mapping = mapping.map_err(|error| MemberError::Keeper(error.to_string()))?;
                self.connection(connection, own).connected = Some(UsableConnection {
                    source,
                    target,
                    mapping,
                    other: terms.other,
                });
            }
            KeeperMessage::Came {
                connection,
                rank,
                version,
            } => {
                self.came.insert((connection, rank), version);
            }
            KeeperMessage::Forgone {
                connection,
                version,
            } => {
                self.forgone.insert(connection, version);
            }
            KeeperMessage::Failed {
                connection,
                reason,
                gone,
            } => {
                for own in [ArrayEnd::Source, ArrayEnd::Target] {
                    let failed = Some((reason.clone(), gone.clone()));
                    self.connection(connection, own).failed = failed;
                }
            }
            KeeperMessage::Gone(gone) => {
                let place = (gone.program.clone(), gone.rank);
                // Said again, if what it had left behind is lost as well.
                self.gone.insert(place, gone);
            }
        }
        Ok(())
    }

    fn connection(&mut self, connection: u32, own: ArrayEnd) -> &mut HeardConnection {
        let place = (connection, own == ArrayEnd::Source);
        self.connections.entry(place).or_default()
    }
}

/// A panic elsewhere leaves what is behind these locks as it was: it is changed in single steps.
pub(crate) fn held<Held>(lock: &Mutex<Held>) -> MutexGuard<'_, Held> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
