//! What a run is made of.

use std::time::Duration;

use exoskel_link::Protection;

use crate::network::LinkModel;

/// Processes of a run, at most.
pub const NODES_MAX: usize = 8;

/// Everything that a run depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeersScenario {
    /// Of all randomness.
    pub seed: u64,
    /// The peers, by the number of their name: two processes can have one.
    pub peers: Vec<usize>,
    /// Who binds what.
    pub bindings: Vec<BindingScenario>,
    /// The wires.
    pub link: LinkModel,
    /// After so much silence a peer is dead.
    pub dead_after: Duration,
    /// How long links wait for another session.
    pub patience: Duration,
    /// Of each link.
    pub credit_bytes: u64,
    /// How long a session may last by the certificates that its ends have shown. Each process has renewed its own when the session ends.
    pub certificates_last: Option<Duration>,
    /// What happens when.
    pub faults: Vec<(Duration, PeersFault)>,
    /// What is wrong with the driver, to see that the checks find it.
    pub mischief: Option<Mischief>,
}

/// One startpoint, and what its holder does with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingScenario {
    /// Whose endpoint.
    pub owner: usize,
    /// Who binds it.
    pub holder: usize,
    /// When.
    pub begins_at: Duration,
    /// How many posts and requests.
    pub messages: u64,
    /// One of so many is a request.
    pub requests_one_in: u64,
    /// Between two of them, at most.
    pub pause: Duration,
    /// Bytes beside the head, at most.
    pub bytes_max: u64,
    /// What the startpoint demands.
    pub protection: Protection,
    /// It is for somebody else.
    pub is_foreign: bool,
    /// It was narrowed to posts on its way.
    pub is_narrowed: bool,
    /// Its holder requires encryption before this message.
    pub requires_at: Option<u64>,
    /// The startpoint isn't made by the owner's program: its holder asks for it, and the owner's rules decide.
    pub is_looked_up: bool,
    /// When the startpoint expires, in whole seconds.
    pub expires: Option<Duration>,
}

/// Something that goes wrong, or right again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeersFault {
    /// All connections between two peers break; both are told.
    Cut(usize, usize),
    /// Nothing that the first one sends reaches the second one.
    Partition(usize, usize),
    /// It does again.
    Repair(usize, usize),
    /// The process stands still.
    Hold(usize),
    /// It goes on.
    Release(usize),
    /// The process dies; another one is there after this time.
    Kill {
        /// Which.
        peer: usize,
        /// Nobody is told: the host is gone, not only the process.
        silent: bool,
        /// Until another one is there.
        restart: Duration,
    },
    /// The process ends in good order; another one is there after this time.
    Leave {
        /// Which.
        peer: usize,
        /// Until another one is there, from the moment at which it is gone.
        restart: Duration,
    },
    /// It has this policy from now on, stricter or looser, and all its sessions begin anew.
    Renew(usize, Protection),
    /// Rules of the owner's node are against all that the binding's holder does, from now on.
    Bar(usize),
    /// One bit of what comes next between two peers is another.
    Alter(usize, usize),
    /// Its policy demands this from now on.
    Raise(usize, Protection),
    /// The startpoint of this binding is taken back.
    Revoke(usize),
}

/// What can go wrong, as users name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeersFaultKind {
    /// All connections between two processes break, and both are told.
    Cut,
    /// For some time, nothing that one process sends reaches another one.
    OneWay,
    /// The same, both ways.
    Partition,
    /// A process stands still for some time.
    Stop,
    /// A process dies, and another one takes its place.
    Kill,
    /// A bit is altered on its way.
    Alter,
    /// A policy demands more.
    Raise,
    /// A startpoint is revoked.
    Revoke,
    /// A process ends in good order, and another one takes its place.
    Leave,
    /// A policy becomes stricter or looser, and all sessions of its process begin anew.
    Renew,
    /// Certificates end while sessions run, and have been renewed.
    Certificates,
    /// A startpoint expires.
    Expire,
    /// Rules of a policy that is read again are against what somebody does.
    Bar,
}

impl PeersFaultKind {
    /// All of them, with their names.
    pub const ALL: [(&'static str, Self); 13] = [
        ("cut", Self::Cut),
        ("one-way", Self::OneWay),
        ("partition", Self::Partition),
        ("stop", Self::Stop),
        ("kill", Self::Kill),
        ("alter", Self::Alter),
        ("raise", Self::Raise),
        ("revoke", Self::Revoke),
        ("leave", Self::Leave),
        ("renew", Self::Renew),
        ("certificates", Self::Certificates),
        ("expire", Self::Expire),
        ("bar", Self::Bar),
    ];

    /// The one of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let mut all = Self::ALL.iter();
        Some(all.find(|(known, _)| *known == name)?.1)
    }
}

/// What narrows the scenarios of seeds; without it, the seed decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeersShape {
    /// How many processes there are, from 2 to [`NODES_MAX`].
    pub nodes: Option<usize>,
    /// How many startpoints are bound.
    pub links: Option<usize>,
    /// How many posts and requests each holder makes.
    pub messages: Option<u64>,
    /// Nothing else goes wrong than this.
    pub faults: Option<Vec<PeersFaultKind>>,
}

impl PeersShape {
    /// Whether this may go wrong.
    pub(super) fn allows(&self, kind: PeersFaultKind) -> bool {
        self.faults
            .as_ref()
            .is_none_or(|kinds| kinds.contains(&kind))
    }
}

/// What a driver does wrong on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mischief {
    /// Some calls don't reach their handlers.
    LosesCalls,
    /// Some calls reach them twice.
    RepeatsCalls,
    /// Some messages aren't given to the session.
    LosesMessages,
    /// Some outcomes are not told.
    LosesOutcomes,
    /// Some are told twice.
    RepeatsOutcomes,
    /// What policies demand is not told to the sessions.
    IgnoresPolicies,
    /// Links of revoked startpoints don't end.
    IgnoresRevocation,
    /// Everybody is taken for who is meant.
    IgnoresIdentity,
    /// A session that is one too many stays.
    KeepsSurplus,
    /// A lost session's links are not told of it.
    IgnoresEnds,
    /// Links of startpoints that have expired don't end.
    IgnoresExpiry,
    /// Links that rules are against don't end.
    IgnoresRules,
    /// Everybody is given startpoints.
    IgnoresLookupRules,
    /// A peer that leaves in good order is taken for one whose connection broke.
    MistakesLeaving,
    /// What has come by a link is not handled once its opener has closed it.
    ForgetsClosed,
    /// Sessions that begin anew are closed as if their process were leaving.
    ClosesForGood,
}

/// A run that went to its end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeersReport {
    /// How many events there were.
    pub steps: u64,
    /// Of all bytes and their times.
    pub digest: u64,
    /// When it was over.
    pub ended_at: Duration,
    /// Faults that happened.
    pub faults: u64,
    /// Posts that links took.
    pub posts: u64,
    /// Requests that links took.
    pub requests: u64,
    /// Bytes on wires, each of which was looked at.
    pub wire_bytes: u64,
    /// Calls that handlers got.
    pub calls: u64,
    /// Replies.
    pub replies: u64,
    /// Requests without a reply.
    pub lost: u64,
    /// Times that a link said that posts may be lost.
    pub losses: u64,
    /// Sessions that began.
    pub sessions: u64,
    /// Those that were one too many.
    pub surplus: u64,
    /// Links that went over to another session.
    pub resumed: u64,
    /// Times that somebody was not let in.
    pub refused: u64,
    /// Startpoints that rules gave to who asked.
    pub looked_up: u64,
    /// Links that ended because their startpoint had expired, or because rules were against them.
    pub ended: u64,
    /// Sessions that were closed because a policy or certificate was renewed.
    pub renewed: u64,
    /// Marks that were seen on wires, all where that is allowed.
    pub seen: u64,
}
