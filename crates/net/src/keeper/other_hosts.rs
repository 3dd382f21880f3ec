//! The coupler and keepers of other hosts, over links: what is said to them, what comes from them, and the versions that go between.
//!
//! # Security
//! A keeper proves itself by its certificate, and the coupler's policy decides who may look up the coupler's endpoint. What one keeper may
//! do to another, it may by a startpoint that the coupler has narrowed to its name and to two handlers. A keeper takes what its own members
//! have asked for, into the part of the one who asked, and nothing else: a piece that is out of turn ends nothing and is dropped.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use aws_lc_rs::rand;
use exoskel_link::Protection;
use exoskel_link::capability::{CapabilityError, Caveat, Startpoint};
use exoskel_transfer::{
    COUPLER_ENDPOINT, CouplerOrder, CouplerWord, JoinRequest, KEEPER_ENDPOINT, KeeperAddress,
    KeeperId, KeeperReport, MemoryId, OWN_KEEPER, PAIR_BYTES_MAX, PROTOCOL, PieceHead, RankPair,
    SaidReport, WantedVersion, Welcome,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::packed::SpareBuffers;
use super::{Inside, KeeperDriver, held};
use crate::links::{
    BindingId, LinkCall, LinkError, LinkNode, MessageContents, RequestAnswer, RequestId,
};

const JOIN: &str = "join";
const STAY: &str = "stay";
const REPORT: &str = "report";
const WORD: &str = "word";
const WANT: &str = "want";
const PIECE: &str = "piece";

/// How long the coupler may take to let a keeper in.
const JOIN_TIME: Duration = Duration::from_secs(20);

/// Between two looks at whether all is over.
const LOOK_TIME: Duration = Duration::from_millis(100);

/// Threads that write what comes from other keepers.
const ARRIVAL_THREADS: usize = 2;

/// What keepers say before we have heard of them, at most.
const EARLY_MAX: usize = 4096;

/// Why a keeper can't work with those of other hosts.
#[derive(Debug, thiserror::Error)]
pub enum KeeperJoinError {
    /// The links fail.
    #[error("{0}")]
    Link(#[from] LinkError),
    /// The startpoint is of no use.
    #[error("{0}")]
    Capability(#[from] CapabilityError),
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
    /// What came from keepers that we hadn't heard of: their names beside it.
    early: VecDeque<(String, WantedVersion)>,
    threads: Vec<JoinHandle<()>>,
    has_ended: bool,
}

struct OtherCoupler {
    name: String,
    binding: BindingId,
    stay: (BindingId, RequestId),
    lost: Option<String>,
}

struct OtherKeeper {
    name: String,
    /// As it gave it to the coupler; narrowed elsewhere.
    startpoint: Startpoint,
    /// For what is said to it; versions have a link of their own.
    words: BindingId,
    /// Asked by the coupler, and answered never: its end is the keeper's.
    stay: Option<(BindingId, RequestId)>,
    versions: Sender<DueVersion>,
    is_lost: bool,
}

impl std::fmt::Debug for OtherHosts {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keepers = self.keepers.keys();
        formatter.debug_list().entries(keepers).finish()
    }
}

/// A version that is to go to one process elsewhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueVersion {
    pub(super) pair: RankPair,
    pub(super) version: u64,
    pub(super) memory: MemoryId,
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

fn contents(message: &impl Serialize) -> MessageContents {
    MessageContents {
        // Of these types nothing fails: their maps have texts for keys.
        head: serde_json::to_vec(message).unwrap_or_default().into(),
        bulk: Vec::new(),
    }
}

fn read<Message: DeserializeOwned>(bytes: &[u8]) -> Result<Message, KeeperJoinError> {
    serde_json::from_slice(bytes).map_err(|error| KeeperJoinError::Answer(error.to_string()))
}

impl OtherHosts {
    /// At the coupler, where others join.
    pub(super) fn of_coupler(node: Arc<LinkNode>) -> Result<Self, KeeperJoinError> {
        let startpoint = offered_keeper(&node)?;
        offer(&node, COUPLER_ENDPOINT, &[JOIN, STAY, REPORT])?;
        Ok(Self::new(node, OWN_KEEPER, startpoint, None))
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
        };
        let others = Self::new(node, welcome.keeper, startpoint, Some(coupler));
        Ok((others, welcome))
    }

    fn new(
        node: Arc<LinkNode>,
        own: KeeperId,
        startpoint: Startpoint,
        coupler: Option<OtherCoupler>,
    ) -> Self {
        Self {
            node,
            own,
            startpoint,
            coupler,
            keepers: BTreeMap::new(),
            early: VecDeque::new(),
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
        for keeper in self.keepers.values().filter(|keeper| !keeper.is_lost) {
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
            if whom.is_none_or(|whom| whom == *number) && !keeper.is_lost {
                // Its loss is noticed by the request that has no answer.
                let _ = self.node.post(keeper.words, WORD, word.clone());
            }
        }
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
        if let Some(other) = self.keepers.get(&keeper) {
            // As above.
            let _ = self.node.post(other.words, WANT, contents(wanted));
        }
    }

    /// Has a version sent, by the thread for this keeper.
    pub(super) fn depart(&self, keeper: KeeperId, due: DueVersion) {
        if let Some(other) = self.keepers.get(&keeper) {
            // It has ended with everything else.
            let _ = other.versions.send(due);
        }
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
            .attenuate(Caveat::handlers([WANT, PIECE]))?;
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
    offer(node, KEEPER_ENDPOINT, &[WORD, STAY, WANT, PIECE])?;
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
        loop {
            let call = node.take_call(endpoint, LOOK_TIME);
            {
                let mut inside = held(&self.inside);
                if inside.is_ending {
                    return;
                }
                if call.is_none() {
                    inside.notice_losses();
                    self.act(&mut inside);
                }
            }
            let Some(mut call) = call else {
                continue;
            };
            if call.handler == STAY {
                staying.push(call);
                continue;
            }
            let answer = match call.handler.as_str() {
                JOIN => self.let_in(node, &call),
                PIECE => {
                    self.take_piece(&call);
                    let spent = std::mem::take(&mut call.bulk);
                    node.recycle(&call, spent);
                    Ok(None)
                }
                _ => self.take_word(&call).map(|()| None),
            };
            match answer {
                Ok(Some(answer)) => drop(node.handled(&call, answer, false)),
                Ok(None) => node.dropped(&call),
                Err(error) => {
                    node.note(format!("{} of {}: {error}", call.handler, call.peer.name()));
                    let text = MessageContents {
                        head: error.to_string().into_bytes().into(),
                        bulk: Vec::new(),
                    };
                    match call.request {
                        Some(_) => drop(node.handled(&call, text, true)),
                        None => node.dropped(&call),
                    }
                }
            }
        }
    }

    /// A keeper asks to join.
    fn let_in(
        self: &Arc<Self>,
        node: &Arc<LinkNode>,
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
        let stay = node.bind(startpoint.clone());
        let staying = node.request(stay, STAY, contents(&OWN_KEEPER))?;
        let mut inside = held(&self.inside);
        let Some(coupler) = &mut inside.coupler else {
            return Err(KeeperJoinError::Refused(
                "there is no coupler here".to_owned(),
            ));
        };
        let welcome = coupler.join();
        let number = welcome.keeper;
        let Some(others) = &mut inside.others else {
            return Ok(None);
        };
        // To the newcomer all others, and to all others the newcomer.
        let own_name = others.node.identity().name.clone();
        let mut known = vec![(OWN_KEEPER, own_name, others.startpoint.clone())];
        for (other, keeper) in &others.keepers {
            known.push((*other, keeper.name.clone(), keeper.startpoint.clone()));
            let address = OtherHosts::address(number, name, &startpoint, &keeper.name)?;
            let word = contents(&CouplerWord::Keeper(address));
            let _ = node.post(keeper.words, WORD, word);
        }
        self.add_keeper(others, number, name, startpoint, Some((stay, staying)))?;
        let words = others.keepers.get(&number).map(|keeper| keeper.words);
        for (other, other_name, startpoint) in known {
            let address = OtherHosts::address(other, &other_name, &startpoint, name)?;
            let word = contents(&CouplerWord::Keeper(address));
            if let Some(words) = words {
                let _ = node.post(words, WORD, word);
            }
        }
        self.take_early(&mut inside);
        self.act(&mut inside);
        Ok(Some(contents(&welcome)))
    }

    /// Another keeper is there from now on.
    fn add_keeper(
        self: &Arc<Self>,
        others: &mut OtherHosts,
        number: KeeperId,
        name: &str,
        startpoint: Startpoint,
        stay: Option<(BindingId, RequestId)>,
    ) -> Result<(), KeeperJoinError> {
        let words = others.node.bind(startpoint.clone());
        let pieces = others.node.bind(startpoint.clone());
        let (versions, due) = channel();
        let (driver, node) = (Arc::clone(self), Arc::clone(&others.node));
        let own = others.own;
        let thread = std::thread::Builder::new().name("exoskel-pair".to_owned());
        let thread = thread.spawn(move || driver.carry(&node, own, number, pieces, &due))?;
        others.threads.push(thread);
        others.keepers.insert(
            number,
            OtherKeeper {
                name: name.to_owned(),
                startpoint,
                words,
                stay,
                versions,
                is_lost: false,
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
            WORD => match read(&call.head)? {
                CouplerWord::Order(order) => inside.keeper.order(order),
                CouplerWord::End => {
                    if let Some(others) = &mut inside.others {
                        others.has_ended = true;
                    }
                }
                CouplerWord::Keeper(address) => {
                    let startpoint = Startpoint::parse(&address.startpoint)?;
                    if let Some(others) = &mut inside.others {
                        let (number, name) = (address.keeper, address.name);
                        self.add_keeper(others, number, &name, startpoint, None)?;
                    }
                    self.take_early(inside);
                }
            },
            _ => {
                let wanted: WantedVersion = read(&call.head)?;
                let Some(others) = &mut inside.others else {
                    return Ok(());
                };
                match others.is_known(wanted.keeper, name) {
                    Some(true) => inside.keeper.wanted(wanted),
                    Some(false) => return Err(spoken_for(name, wanted.keeper)),
                    None if others.early.len() < EARLY_MAX => {
                        others.early.push_back((name.to_owned(), wanted));
                    }
                    None => {}
                }
            }
        }
        self.act(inside);
        Ok(())
    }

    /// What keepers have said before we knew of them.
    fn take_early(&self, inside: &mut Inside) {
        let Some(others) = &mut inside.others else {
            return;
        };
        for (name, wanted) in std::mem::take(&mut others.early) {
            match others.is_known(wanted.keeper, &name) {
                Some(true) => inside.keeper.wanted(wanted),
                Some(false) => {}
                None => others.early.push_back((name, wanted)),
            }
        }
    }

    /// Writes a piece of a version where it belongs.
    fn take_piece(&self, call: &LinkCall) {
        let Ok(head) = serde_json::from_slice::<PieceHead>(&call.head) else {
            return;
        };
        let found = {
            let mut inside = held(&self.inside);
            let others = inside.others.as_ref();
            let is_known = others.and_then(|others| others.is_known(head.keeper, call.peer.name()));
            if is_known != Some(true) {
                return;
            }
            let memory = inside.keeper.expected(&head).and_then(|memory| {
                let kept = inside.memories.get(&memory)?;
                Some(Arc::clone(&kept.mapped))
            });
            memory.zip(inside.keeper.unpacking(head.pair))
        };
        let Some((memory, cut)) = found.filter(|(_, cut)| head.piece < cut.count()) else {
            return;
        };
        let piece = cut.piece(head.piece);
        let [bytes] = call.bulk.as_slice() else {
            return;
        };
        if bytes.len() as u64 != piece.bytes() {
            return;
        }
        memory.write(|contents| piece.run(bytes, contents));
        let mut inside = held(&self.inside);
        inside.keeper.arrived(&head, head.piece + 1 == cut.count());
        self.act(&mut inside);
    }

    /// Sends versions to one keeper, one after the other.
    fn carry(
        &self,
        node: &LinkNode,
        own: KeeperId,
        keeper: KeeperId,
        binding: BindingId,
        due: &Receiver<DueVersion>,
    ) {
        let spare = Arc::new(SpareBuffers::default());
        for due in due {
            if let Err(error) = self.send_version(node, own, binding, due, &spare) {
                let mut inside = held(&self.inside);
                inside.lose_keeper(keeper, &error.to_string());
                self.act(&mut inside);
                return;
            }
        }
    }

    fn send_version(
        &self,
        node: &LinkNode,
        own: KeeperId,
        binding: BindingId,
        due: DueVersion,
        spare: &Arc<SpareBuffers>,
    ) -> Result<(), LinkError> {
        let found = {
            let mut inside = held(&self.inside);
            let kept = inside.memories.get(&due.memory);
            let memory = kept.map(|kept| Arc::clone(&kept.mapped));
            memory.zip(inside.keeper.packing(due.pair))
        };
        let Some((memory, cut)) = found else {
            return Ok(());
        };
        for number in 0..cut.count() {
            let piece = cut.piece(number);
            let bytes = spare.packed(piece.bytes() as usize, |bytes| {
                memory.read(|contents| piece.run(contents, bytes));
            });
            let head = PieceHead {
                keeper: own,
                pair: due.pair,
                version: due.version,
                piece: number,
            };
            let mut contents = contents(&head);
            contents.bulk.push(bytes);
            while !node.wait_for_room_within(binding, &contents, PAIR_BYTES_MAX, LOOK_TIME) {
                if held(&self.inside).is_ending {
                    return Ok(());
                }
            }
            node.post(binding, PIECE, contents)?;
        }
        let mut inside = held(&self.inside);
        inside.keeper.departed(due.pair);
        self.act(&mut inside);
        Ok(())
    }
}

impl Inside {
    /// Looks at the requests that have no answer as long as others are there.
    fn notice_losses(&mut self) {
        let Some(others) = &mut self.others else {
            return;
        };
        let node = Arc::clone(&others.node);
        let lost = |(binding, request): (BindingId, RequestId)| {
            if !node.has_answer(request) {
                return None;
            }
            match node.wait(binding, request, Duration::ZERO) {
                Some(RequestAnswer::Lost(error)) => Some(error.to_string()),
                _ => Some("it has ended".to_owned()),
            }
        };
        if let Some(coupler) = &mut others.coupler
            && coupler.lost.is_none()
        {
            coupler.lost = lost(coupler.stay);
        }
        let mut gone = Vec::new();
        for (number, keeper) in &others.keepers {
            if let Some(why) = keeper.stay.filter(|_| !keeper.is_lost).and_then(lost) {
                gone.push((*number, why));
            }
        }
        for (number, why) in gone {
            self.lose_keeper(number, &why);
        }
    }

    /// A keeper can't be reached any more.
    fn lose_keeper(&mut self, keeper: KeeperId, why: &str) {
        let Some(others) = &mut self.others else {
            return;
        };
        if let Some(other) = others.keepers.get_mut(&keeper) {
            other.is_lost = true;
        }
        match &mut self.coupler {
            Some(coupler) => coupler.keeper_lost(keeper, why),
            None => others.report(&KeeperReport::Unreachable {
                keeper,
                why: why.to_owned(),
            }),
        }
    }
}
