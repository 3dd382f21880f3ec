//! The coupler and keepers of other hosts, over links: what is said to them, what comes from them, and the versions that go between.
//!
//! # Security
//! A keeper proves itself by its certificate, and the coupler's policy decides who may look up the coupler's endpoint. What one keeper may
//! do to another, it may by a startpoint that the coupler has narrowed to its name and to five handlers. A keeper takes what its own members
//! have asked for, into the part of the one who asked, and nothing else: a piece that is out of turn ends nothing and is dropped.
//! What one keeper says of another's end is weighed by the coupler; of processes it speaks for its own.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aws_lc_rs::rand;
use exoskel_link::Protection;
use exoskel_link::capability::{CapabilityError, Caveat, Startpoint};
use exoskel_member::copy_to_part;
use exoskel_transfer::{
    COUPLER_ENDPOINT, CouplerOrder, CouplerWord, GivenUp, GoneMember, JoinRequest, KEEPER_ENDPOINT,
    KeeperAddress, KeeperId, KeeperReport, MEMBERS_OF_KEEPER_MAX, OWN_KEEPER, PROTOCOL, PieceHead,
    SaidIndices, SaidReport, WantedVersion, Welcome,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::departures::DueVersion;
use super::{Inside, KeeperDriver, held};
use crate::links::{
    BindingId, LinkCall, LinkError, LinkNode, MessageContents, RequestAnswer, RequestId,
};
use crate::listening::ListenError;

mod losses;
#[cfg(test)]
mod tests;

const JOIN: &str = "join";
const STAY: &str = "stay";
const REPORT: &str = "report";
const WORD: &str = "word";
const WANT: &str = "want";
pub(super) const PIECE: &str = "piece";
const GONE: &str = "gone";
const INDICES: &str = "indices";

/// How long the coupler may take to let a keeper in.
const JOIN_TIME: Duration = Duration::from_secs(20);

/// Between two looks at whether all is over.
pub(super) const LOOK_TIME: Duration = Duration::from_millis(100);

/// Threads that write what comes from other keepers.
const ARRIVAL_THREADS: usize = 2;

/// Words of index sets that one keeper may say before we have heard of it: some hundred megabytes.
const EARLY_INDICES_MAX: usize = 64;

/// Calls that are looked through for some to be answered, when all is over.
const LAST_CALLS_MAX: usize = 1024;

/// Why a keeper can't work with those of other hosts.
#[derive(Debug, thiserror::Error)]
pub enum KeeperJoinError {
    /// The links fail.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The startpoint is of no use.
    #[error("{0}")]
    Capability(#[from] CapabilityError),
    /// There is no place for members.
    #[error("{0}")]
    Listen(#[from] ListenError),
    /// The coupler says no.
    #[error("the coupler refuses: {0}")]
    Refused(String),
    /// What it says can't be read.
    #[error(
        "the coupler answers what can't be read ({0}): coupler and keeper must be of the same version of Exoskel"
    )]
    Answer(String),
    /// It says nothing.
    #[error("the coupler has not answered within {0:?}")]
    NoAnswer(Duration),
    /// The system refuses.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What is known of other hosts, and what leads there.
pub(super) struct OtherHosts {
    node: Arc<LinkNode>,
    /// Our number.
    own: KeeperId,
    /// Our endpoint's, which the coupler narrows for others.
    startpoint: Startpoint,
    /// The coupler's, if it isn't here.
    coupler: Option<OtherCoupler>,
    keepers: BTreeMap<KeeperId, OtherKeeper>,
    /// What came from keepers that we hadn't heard of, by the names that they have proved: one can't push out another's.
    early: BTreeMap<String, BTreeMap<EarlyPlace, WantedVersion>>,
    /// The same of index sets, in order.
    early_indices: BTreeMap<String, Vec<SaidIndices>>,
    /// How many connections there are: of each, all members of a keeper may ask for a version early.
    connections: usize,
    threads: Vec<JoinHandle<()>>,
    has_ended: bool,
}

/// A keeper's number, a connection, and a process of its target.
type EarlyPlace = (KeeperId, u32, u32);

struct OtherCoupler {
    name: String,
    binding: BindingId,
    stay: (BindingId, RequestId),
    lost: Option<String>,
    /// It has said that it ends.
    has_ended: bool,
}

struct OtherKeeper {
    name: String,
    /// As it gave it to the coupler; narrowed elsewhere.
    startpoint: Startpoint,
    /// For what is said to it; versions have a link of their own.
    words: BindingId,
    /// Answered at its end in good order, or when it gives us up. The way's end is its end, too.
    stay: (BindingId, RequestId),
    /// None when it is lost.
    versions: Option<Sender<DueVersion>>,
    /// Why it is, if it is: it is told so when it asks.
    lost: Option<GivenUp>,
    /// It has said that it ends.
    has_ended: bool,
}

impl std::fmt::Debug for OtherHosts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keepers = self.keepers.keys();
        formatter.debug_list().entries(keepers).finish()
    }
}

fn offer(node: &LinkNode, endpoint: &str, handlers: &[&str]) -> Result<(), KeeperJoinError> {
    let (mut key_id, mut secret) = ([0; 16], [0; 32]);
    rand::fill(&mut key_id).map_err(io::Error::other)?;
    rand::fill(&mut secret).map_err(io::Error::other)?;
    node.offer(endpoint, Protection::Plain, key_id, secret)?;
    for handler in handlers {
        node.add_handler(endpoint, handler)?;
    }
    Ok(())
}

pub(super) fn contents(message: &impl Serialize) -> MessageContents {
    MessageContents {
        // Of these types nothing fails: their maps have texts for keys.
        head: serde_json::to_vec(message).unwrap_or_default().into(),
        bulk: Vec::new(),
        is_gathered: false,
    }
}

fn text(text: String) -> MessageContents {
    MessageContents {
        head: text.into_bytes().into(),
        bulk: Vec::new(),
        is_gathered: false,
    }
}

fn read<Message: DeserializeOwned>(bytes: &[u8]) -> Result<Message, KeeperJoinError> {
    serde_json::from_slice(bytes).map_err(|error| KeeperJoinError::Answer(error.to_string()))
}

impl OtherHosts {
    /// At the coupler, where others join.
    pub(super) fn of_coupler(
        node: Arc<LinkNode>,
        connections: usize,
    ) -> Result<Self, KeeperJoinError> {
        let startpoint = offered_keeper(&node)?;
        offer(&node, COUPLER_ENDPOINT, &[JOIN, STAY, REPORT])?;
        Ok(Self::new(node, OWN_KEEPER, startpoint, None, connections))
    }

    /// Asks the coupler to join.
    pub(super) fn joining(
        node: Arc<LinkNode>,
        coupler: Startpoint,
    ) -> Result<(Self, Welcome), KeeperJoinError> {
        let startpoint = offered_keeper(&node)?;
        let name = coupler.node().name.clone();
        let binding = node.bind(coupler.clone());
        let request = JoinRequest {
            protocol: PROTOCOL,
            startpoint: startpoint.text(),
        };
        let asked = node.request(binding, JOIN, contents(&request))?;
        let welcome: Welcome = match node.wait(binding, asked, JOIN_TIME) {
            Some(RequestAnswer::Reply { head, .. }) => read(&head)?,
            Some(RequestAnswer::Failure { head }) => {
                let reason = String::from_utf8_lossy(&head).into_owned();
                return Err(KeeperJoinError::Refused(reason));
            }
            Some(RequestAnswer::Lost(error)) => return Err(error.into()),
            None => return Err(KeeperJoinError::NoAnswer(JOIN_TIME)),
        };
        let stay = node.bind(coupler);
        let staying = node.request(stay, STAY, contents(&welcome.keeper))?;
        let coupler = OtherCoupler {
            name,
            binding,
            stay: (stay, staying),
            lost: None,
            has_ended: false,
        };
        let connections = welcome.connections.len();
        let own = welcome.keeper;
        let others = Self::new(node, own, startpoint, Some(coupler), connections);
        Ok((others, welcome))
    }

    fn new(
        node: Arc<LinkNode>,
        own: KeeperId,
        startpoint: Startpoint,
        coupler: Option<OtherCoupler>,
        connections: usize,
    ) -> Self {
        Self {
            connections,
            node,
            own,
            startpoint,
            coupler,
            keepers: BTreeMap::new(),
            early: BTreeMap::new(),
            early_indices: BTreeMap::new(),
            threads: Vec::new(),
            has_ended: false,
        }
    }

    pub(super) fn node(&self) -> Arc<LinkNode> {
        Arc::clone(&self.node)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    pub(super) fn coupler_lost(&self) -> Option<String> {
        self.coupler.as_ref()?.lost.clone()
    }

    /// Tells keepers that have joined that all is over. Returns the threads that are ending.
    pub(super) fn end(&mut self) -> Vec<JoinHandle<()>> {
        for keeper in self.keepers.values().filter(|keeper| keeper.lost.is_none()) {
            if self.coupler.is_none() {
                // Who is gone needn't be told.
                let _ = self
                    .node
                    .post(keeper.words, WORD, contents(&CouplerWord::End));
            }
        }
        self.keepers.clear();
        std::mem::take(&mut self.threads)
    }

    /// What the coupler wants, to a keeper elsewhere or to all of them.
    pub(super) fn order(&self, whom: Option<KeeperId>, order: &CouplerOrder) {
        let word = contents(&CouplerWord::Order(order.clone()));
        for (number, keeper) in &self.keepers {
            if whom.is_none_or(|whom| whom == *number) && keeper.lost.is_none() {
                // Its loss is noticed by the request that has no answer.
                let _ = self.node.post(keeper.words, WORD, word.clone());
            }
        }
    }

    /// Tells all other keepers what the coupler would have, were it there.
    pub(super) fn tell_gone(&self, gone: &GoneMember) {
        let said = SaidReport {
            keeper: self.own,
            report: KeeperReport::Gone(gone.clone()),
        };
        for keeper in self.keepers.values().filter(|keeper| keeper.lost.is_none()) {
            // Its loss is noticed by the request that has no answer.
            let _ = self.node.post(keeper.words, GONE, contents(&said));
        }
    }

    /// The coupler, here, gives a keeper up: all others are told, and that keeper when it asks.
    pub(super) fn tell_lost(&mut self, lost: KeeperId, given_up: GivenUp) {
        let word = contents(&CouplerWord::Lost {
            keeper: lost,
            why: given_up.why.clone(),
        });
        self.give_up(lost, given_up.clone());
        if let Some(other) = self.keepers.get_mut(&lost) {
            // This host may have seen it before, when it didn't know yet what was lost first.
            other.lost = Some(given_up);
        }
        for keeper in self.keepers.values().filter(|keeper| keeper.lost.is_none()) {
            // As above.
            let _ = self.node.post(keeper.words, WORD, word.clone());
        }
    }

    /// Nothing goes to a keeper any more. Says whether that is new.
    fn give_up(&mut self, keeper: KeeperId, given_up: GivenUp) -> bool {
        let other = self.keepers.get_mut(&keeper);
        let Some(other) = other.filter(|other| other.lost.is_none()) else {
            return false;
        };
        other.lost = Some(given_up);
        // Its thread ends with the sender.
        other.versions = None;
        let (binding, request) = other.stay;
        self.node.forget(binding, request);
        self.node.unbind(binding);
        self.node.unbind(other.words);
        true
    }

    /// Whether nothing more goes to a keeper.
    pub(super) fn is_lost(&self, keeper: KeeperId) -> bool {
        let other = self.keepers.get(&keeper);
        other.is_none_or(|other| other.lost.is_some())
    }

    /// Why somebody who asks has been given up, if it has.
    fn why_given_up(&self, call: &LinkCall) -> Option<GivenUp> {
        let keeper: KeeperId = read(&call.head).ok()?;
        let other = self.keepers.get(&keeper);
        let other = other.filter(|other| other.name == call.peer.name())?;
        other.lost.clone()
    }

    /// What the coupler, elsewhere, is to know.
    pub(super) fn report(&self, report: &KeeperReport) {
        if let Some(coupler) = &self.coupler {
            // As above.
            let said = SaidReport {
                keeper: self.own,
                report: report.clone(),
            };
            let _ = self.node.post(coupler.binding, REPORT, contents(&said));
        }
    }

    pub(super) fn want(&self, keeper: KeeperId, wanted: &WantedVersion) {
        let other = self.keepers.get(&keeper);
        if let Some(other) = other.filter(|other| other.lost.is_none()) {
            // As above.
            let _ = self.node.post(other.words, WANT, contents(wanted));
        }
    }

    /// Tells a keeper something of index sets.
    fn say_indices(&self, keeper: KeeperId, said: &SaidIndices) -> Result<(), LinkError> {
        match self.keepers.get(&keeper) {
            Some(other) if other.lost.is_none() => {
                self.node.post(other.words, INDICES, contents(said))
            }
            // It is lost, which is told otherwise.
            _ => Ok(()),
        }
    }

    /// Has a version sent, by the thread for this keeper, if there is one.
    pub(super) fn depart(&self, keeper: KeeperId, due: DueVersion) -> bool {
        let other = self.keepers.get(&keeper);
        let versions = other.and_then(|other| other.versions.as_ref());
        versions.is_some_and(|versions| versions.send(due).is_ok())
    }

    /// Where another keeper is, for one of this name.
    fn address(
        keeper: KeeperId,
        name: &str,
        startpoint: &Startpoint,
        reader: &str,
    ) -> Result<KeeperAddress, CapabilityError> {
        let narrowed = startpoint
            .attenuate(Caveat::holder(reader)?)?
            .attenuate(Caveat::handlers([WANT, PIECE, STAY, GONE, INDICES]))?;
        Ok(KeeperAddress {
            keeper,
            name: name.to_owned(),
            startpoint: narrowed.text().to_string(),
        })
    }

    /// Whether a keeper's number goes with a name that was proved.
    fn is_known(&self, keeper: KeeperId, name: &str) -> Option<bool> {
        if let Some(coupler) = self.coupler.as_ref().filter(|_| keeper == OWN_KEEPER) {
            return Some(coupler.name == name);
        }
        Some(self.keepers.get(&keeper)?.name == name)
    }
}

/// Numbers are told, names are proved.
fn spoken_for(name: &str, keeper: KeeperId) -> KeeperJoinError {
    KeeperJoinError::Refused(format!(
        "{name} speaks as keeper {keeper}, expected that keeper's own name"
    ))
}

fn offered_keeper(node: &LinkNode) -> Result<Startpoint, KeeperJoinError> {
    offer(
        node,
        KEEPER_ENDPOINT,
        &[WORD, STAY, WANT, PIECE, GONE, INDICES],
    )?;
    // Only the coupler gets it, which narrows it for each keeper.
    let everybody = vec![Caveat::holder("*")?];
    Ok(node.startpoint(KEEPER_ENDPOINT, false, everybody)?)
}

/// The threads that serve what comes from other hosts.
pub(super) fn threads(
    driver: &Arc<KeeperDriver>,
    node: &Arc<LinkNode>,
    has_coupler: bool,
) -> io::Result<Vec<JoinHandle<()>>> {
    let mut endpoints = vec![KEEPER_ENDPOINT; ARRIVAL_THREADS];
    if has_coupler {
        endpoints.push(COUPLER_ENDPOINT);
    }
    let mut threads = Vec::new();
    for endpoint in endpoints {
        let (driver, node) = (Arc::clone(driver), Arc::clone(node));
        let thread = std::thread::Builder::new().name(format!("exoskel-{endpoint}"));
        threads.push(thread.spawn(move || driver.serve_calls(&node, endpoint))?);
    }
    Ok(threads)
}

impl KeeperDriver {
    fn serve_calls(self: &Arc<Self>, node: &Arc<LinkNode>, endpoint: &str) {
        // Requests that have no answer as long as we are there.
        let mut staying = Vec::new();
        let mut looked = Instant::now();
        loop {
            let asked = Instant::now();
            let call = node.take_call(endpoint, LOOK_TIME);
            if call.is_none() {
                // A node that is closed answers at once.
                std::thread::sleep(LOOK_TIME.saturating_sub(asked.elapsed()));
            }
            if held(&self.inside).is_ending {
                self.answer_given_up(node, &mut staying);
                answer_last(node, endpoint, staying.into_iter().chain(call));
                return;
            }
            if looked.elapsed() >= LOOK_TIME {
                looked = Instant::now();
                let mut inside = held(&self.inside);
                // Who ends in good order has said before what is still to be taken here.
                let hears_reports = endpoint == COUPLER_ENDPOINT || inside.coupler.is_none();
                inside.notice_losses(call.is_none() && hears_reports);
                self.act(&mut inside);
                drop(inside);
                self.answer_given_up(node, &mut staying);
            }
            let Some(mut call) = call else {
                continue;
            };
            if call.handler == STAY {
                staying.push(call);
                continue;
            }
            let answer = match call.handler.as_str() {
                JOIN => self.let_in(&call),
                PIECE => {
                    let is_told = self.take_piece(&call);
                    let spent = std::mem::take(&mut call.bulk);
                    node.recycle(&call, spent);
                    if is_told {
                        node.acknowledge(&call);
                        continue;
                    }
                    Ok(None)
                }
                _ => self.take_word(&call).map(|()| None),
            };
            match answer {
                Ok(Some(answer)) => drop(node.handled(&call, answer, false)),
                Ok(None) => node.dropped(&call),
                Err(error) => {
                    node.note(format!("{} of {}: {error}", call.handler, call.peer.name()));
                    match call.request {
                        Some(_) => drop(node.handled(&call, text(error.to_string()), true)),
                        None => node.dropped(&call),
                    }
                }
            }
        }
    }

    /// Tells those who have been given up, and forgets those who are gone.
    fn answer_given_up(&self, node: &LinkNode, staying: &mut Vec<LinkCall>) {
        staying.retain(|call| {
            if !node.is_linked(call) {
                node.dropped(call);
                return false;
            }
            let inside = held(&self.inside);
            let others = inside.others.as_ref();
            let Some(given_up) = others.and_then(|others| others.why_given_up(call)) else {
                return true;
            };
            drop(inside);
            // It may have gone meanwhile.
            let _ = node.handled(call, contents(&given_up), true);
            false
        });
    }

    /// A keeper asks to join.
    fn let_in(
        self: &Arc<Self>,
        call: &LinkCall,
    ) -> Result<Option<MessageContents>, KeeperJoinError> {
        let request: JoinRequest = read(&call.head)?;
        if request.protocol != PROTOCOL {
            return Err(KeeperJoinError::Refused(format!(
                "the keeper speaks version {} of the protocol, the coupler {PROTOCOL}: update the older of the two installations",
                request.protocol
            )));
        }
        let startpoint = Startpoint::parse(&request.startpoint)?;
        let name = call.peer.name();
        if startpoint.node().name != name {
            return Err(KeeperJoinError::Refused(format!(
                "got a startpoint of {}, expected one of {name}, who has sent it",
                startpoint.node().name
            )));
        }
        let mut inside = held(&self.inside);
        let inside: &mut Inside = &mut inside;
        let Some(coupler) = inside.coupler.as_mut().filter(|_| !inside.is_ending) else {
            return Err(KeeperJoinError::Refused(
                "there is no coupler here, or it is ending".to_owned(),
            ));
        };
        let Some(others) = &mut inside.others else {
            return Ok(None);
        };
        let welcome = coupler.join().map_err(KeeperJoinError::Refused)?;
        let number = welcome.keeper;
        let added = self.introduce(others, number, name, startpoint);
        if let Err(error) = added {
            coupler.keeper_lost(number, &error.to_string());
            return Err(error);
        }
        self.take_early(inside);
        self.act(inside);
        Ok(Some(contents(&welcome)))
    }

    /// Adds a keeper that has joined, and makes it and all others known to each other.
    fn introduce(
        self: &Arc<Self>,
        others: &mut OtherHosts,
        number: KeeperId,
        name: &str,
        startpoint: Startpoint,
    ) -> Result<(), KeeperJoinError> {
        let node = Arc::clone(&others.node);
        // To the newcomer all others, and to all others the newcomer.
        let own_name = others.node.identity().name.clone();
        let mut known = vec![(OWN_KEEPER, own_name, others.startpoint.clone())];
        let present = others.keepers.iter();
        for (other, keeper) in present.filter(|(_, keeper)| keeper.lost.is_none()) {
            known.push((*other, keeper.name.clone(), keeper.startpoint.clone()));
            let address = OtherHosts::address(number, name, &startpoint, &keeper.name)?;
            let word = contents(&CouplerWord::Keeper(address));
            let _ = node.post(keeper.words, WORD, word);
        }
        self.add_keeper(others, number, name, startpoint)?;
        let words = others.keepers.get(&number).map(|keeper| keeper.words);
        for (other, other_name, startpoint) in known {
            let address = OtherHosts::address(other, &other_name, &startpoint, name)?;
            let word = contents(&CouplerWord::Keeper(address));
            if let Some(words) = words {
                let _ = node.post(words, WORD, word);
            }
        }
        Ok(())
    }

    /// Another keeper is there from now on.
    fn add_keeper(
        self: &Arc<Self>,
        others: &mut OtherHosts,
        number: KeeperId,
        name: &str,
        startpoint: Startpoint,
    ) -> Result<(), KeeperJoinError> {
        let stay = others.node.bind(startpoint.clone());
        let staying = others.node.request(stay, STAY, contents(&others.own))?;
        let words = others.node.bind(startpoint.clone());
        let pieces = others.node.bind(startpoint.clone());
        let (versions, due) = channel();
        let (driver, node) = (Arc::clone(self), Arc::clone(&others.node));
        let own = others.own;
        let thread = std::thread::Builder::new().name("exoskel-pair".to_owned());
        let thread = thread.spawn(move || driver.carry(&node, own, number, pieces, &due))?;
        others.threads.retain(|thread| !thread.is_finished());
        others.threads.push(thread);
        others.keepers.insert(
            number,
            OtherKeeper {
                name: name.to_owned(),
                startpoint,
                words,
                stay: (stay, staying),
                versions: Some(versions),
                lost: None,
                has_ended: false,
            },
        );
        Ok(())
    }

    /// What is said by the coupler or another keeper.
    fn take_word(self: &Arc<Self>, call: &LinkCall) -> Result<(), KeeperJoinError> {
        let name = call.peer.name();
        let mut guard = held(&self.inside);
        let inside: &mut Inside = &mut guard;
        match call.handler.as_str() {
            REPORT => {
                let said: SaidReport = read(&call.head)?;
                let others = inside.others.as_ref();
                let is_known = others.and_then(|others| others.is_known(said.keeper, name));
                let Some(coupler) = inside.coupler.as_mut().filter(|_| is_known == Some(true))
                else {
                    return Err(spoken_for(name, said.keeper));
                };
                coupler.report(said.keeper, said.report);
                // The driver may have to look earlier now at who is still absent.
                self.wake_up.raise();
            }
            GONE => {
                let said: SaidReport = read(&call.head)?;
                let others = inside.others.as_ref();
                let is_known = others.and_then(|others| others.is_known(said.keeper, name));
                if let (Some(true), KeeperReport::Gone(gone)) = (is_known, said.report) {
                    inside.keeper.told_gone(said.keeper, gone);
                }
            }
            WORD => match read(&call.head)? {
                CouplerWord::Order(order) => {
                    if matches!(order, CouplerOrder::ProgramEnded { .. }) {
                        // What its processes have said last may not have been read yet.
                        self.serve_all(inside);
                    }
                    inside.keeper.order(order);
                }
                CouplerWord::End => inside.end_with_coupler(),
                CouplerWord::Keeper(address) => {
                    let startpoint = Startpoint::parse(&address.startpoint)?;
                    let others = inside.others.as_mut().filter(|_| !inside.is_ending);
                    if let Some(others) = others {
                        self.add_keeper(others, address.keeper, &address.name, startpoint)?;
                    }
                    self.take_early(inside);
                }
                CouplerWord::Lost { keeper, why } => {
                    if let Some(others) = &mut inside.others {
                        others.give_up(keeper, GivenUp::alone(&why));
                    }
                    inside.keeper.sends_no_more(keeper);
                }
            },
            INDICES => self.take_indices(inside, name, read(&call.head)?)?,
            _ => {
                let wanted: WantedVersion = read(&call.head)?;
                let Some(others) = &mut inside.others else {
                    return Ok(());
                };
                match others.is_known(wanted.keeper, name) {
                    Some(true) => inside.keeper.wanted(wanted),
                    Some(false) => return Err(spoken_for(name, wanted.keeper)),
                    None => {
                        let early = others.early.entry(name.to_owned()).or_default();
                        if early.len() < MEMBERS_OF_KEEPER_MAX * others.connections {
                            let place = (wanted.keeper, wanted.connection, wanted.target);
                            early.insert(place, wanted);
                        }
                    }
                }
            }
        }
        self.act(inside);
        Ok(())
    }

    /// What another keeper says of index sets.
    fn take_indices(
        &self,
        inside: &mut Inside,
        name: &str,
        said: SaidIndices,
    ) -> Result<(), KeeperJoinError> {
        let Some(others) = &mut inside.others else {
            return Ok(());
        };
        match others.is_known(said.keeper, name) {
            Some(true) => inside.keeper.told_indices(said),
            Some(false) => return Err(spoken_for(name, said.keeper)),
            None => {
                let early = others.early_indices.entry(name.to_owned()).or_default();
                if early.len() >= EARLY_INDICES_MAX {
                    // Without it the connection could never be used.
                    inside.keeper.indices_missed(said.connection);
                } else {
                    early.push(said);
                }
            }
        }
        Ok(())
    }

    /// What keepers have said before we knew of them.
    fn take_early(&self, inside: &mut Inside) {
        let Some(others) = &mut inside.others else {
            return;
        };
        let mut early = std::mem::take(&mut others.early);
        for (name, wanted) in &mut early {
            wanted.retain(|_, wanted| {
                let is_known = others.is_known(wanted.keeper, name);
                if is_known == Some(true) {
                    inside.keeper.wanted(*wanted);
                }
                is_known.is_none()
            });
        }
        early.retain(|_, wanted| !wanted.is_empty());
        others.early = early;
        for (name, said) in std::mem::take(&mut others.early_indices) {
            for said in said {
                match others.is_known(said.keeper, &name) {
                    Some(true) => inside.keeper.told_indices(said),
                    Some(false) => {}
                    None => {
                        let early = others.early_indices.entry(name.clone()).or_default();
                        early.push(said);
                    }
                }
            }
        }
    }

    /// Writes a piece of a version where it belongs. Says whether its sender is to hear at once that it is done with: it is the last one of its
    /// version for a process, or nobody wants it.
    fn take_piece(&self, call: &LinkCall) -> bool {
        let Ok(head) = serde_json::from_slice::<PieceHead>(&call.head) else {
            return true;
        };
        let found = {
            let mut inside = held(&self.inside);
            let others = inside.others.as_ref();
            let is_known = others.and_then(|others| others.is_known(head.keeper, call.peer.name()));
            if is_known != Some(true) {
                return true;
            }
            // What nobody has asked for isn't worked out.
            let Some(memory) = inside.keeper.expected(&head) else {
                return true;
            };
            let memory = inside.memories.get(&memory);
            let memory = memory.map(|kept| Arc::clone(&kept.mapped));
            memory.zip(inside.keeper.unpacking(head.pair))
        };
        let found = found.filter(|(_, cut)| head.piece < cut.count());
        let is_last = found.and_then(|(memory, cut)| {
            let piece = cut.piece(head.piece);
            let [bytes] = call.bulk.as_slice() else {
                return None;
            };
            if bytes.len() as u64 != piece.bytes() {
                return None;
            }
            memory.write(|contents| copy_to_part(&piece, bytes, contents));
            Some(head.piece + 1 == cut.count())
        });
        let mut inside = held(&self.inside);
        match is_last {
            Some(is_last) => inside.keeper.arrived(&head, is_last),
            None => inside.keeper.not_arrived(&head),
        }
        self.act(&mut inside);
        is_last != Some(false)
    }
}

/// Tells all who wait for our end that this is a good one.
fn answer_last(node: &LinkNode, endpoint: &str, calls: impl Iterator<Item = LinkCall>) {
    let more = std::iter::from_fn(|| node.take_call(endpoint, Duration::ZERO));
    for call in calls.chain(more.take(LAST_CALLS_MAX)) {
        match call.handler == STAY {
            // It may have gone itself.
            true => drop(node.handled(&call, text("it has ended".to_owned()), false)),
            false => node.dropped(&call),
        }
    }
}
