//! One run: the machine that replays jobs on nodes, in virtual time.

mod messages;
mod processors;

use crate::agenda::PacketAgenda;
use crate::error::KeycacheError;
use crate::event::Event;
use crate::flight::{Flight, NOBODY};
use crate::key_memory::KeyMemoryTotal;
use crate::network::Network;
use crate::outcome::{JobOutcome, LatencyRecorder, RunOutcome};
use crate::parameters::Parameters;
use crate::program::Instruction;
use crate::ranks_per_card::RanksPerCard;
use crate::scheduler::{ReadyQueues, SchedulerRules, Slice, Turns};
use crate::study::Study;
use crate::time::Picoseconds;
use exoskel_determinism::{RunDigest, SplitMix64};

/// After so many events somebody looks whether anything gets on.
const WATCH_EVENTS: u64 = 1 << 16;

/// A run ends when nobody computed and no message came for so long: hundreds of the longest quanta.
const STARVED: Picoseconds = Picoseconds(100_000_000_000_000);

/// A run that somebody goes on with as they like, see [`Study::start`].
pub struct Run<'a> {
    study: &'a Study,
    seed: u64,
    rules: SchedulerRules,
    ranks_per_card: RanksPerCard,
    context_switch: Picoseconds,
    agenda: PacketAgenda<Event>,
    now: Picoseconds,
    network: Network,
    flights: Vec<Flight>,
    /// By job, then rank; see [`Self::place`].
    processes: Vec<RankProcess<'a>>,
    processors: Vec<Processor>,
    turns: Option<Turns>,
    jobs: Vec<Job>,
    /// Processes that haven't ended, and those of them that wait for a message that isn't here.
    alive: usize,
    waiting: usize,
    /// Messages that have been sent and aren't delivered.
    on_the_way: usize,
    messages: u64,
    payload_bytes: u64,
    message_latency: LatencyRecorder,
    context_switches: u64,
    spun: Picoseconds,
    computed: Picoseconds,
    events: u64,
    /// When what was done last changed, as far as was looked: the time computed, and the messages delivered.
    watched: (Picoseconds, (Picoseconds, u64)),
    digest: RunDigest,
}

/// A rank of a job.
struct RankProcess<'a> {
    job: u16,
    rank: u16,
    instructions: &'a [Instruction],
    /// The next instruction.
    next: usize,
    state: RankState,
    computing: Picoseconds,
    awaited: Option<AwaitedMessage>,
    spin_left: Picoseconds,
    blocked_at: Picoseconds,
    /// Messages that are here and that it hasn't taken.
    untaken: u32,
    random: SplitMix64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RankState {
    /// It has the processor or could have it.
    Runnable,
    /// It waits without the processor.
    Blocked,
    Ended,
}

/// A message that a process waits for: to come, or to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AwaitedMessage {
    message: u32,
    arrival: bool,
}

/// The processor that a rank of each job has.
struct Processor {
    running: Option<u16>,
    /// Who ran last.
    last: Option<u16>,
    /// Up to when the running process's time is accounted for; in the future while the processor changes to it.
    since: Picoseconds,
    /// Plans of other generations are void.
    generation: u32,
    ready: ReadyQueues,
    /// The process that was boosted last.
    boosted: u16,
}

struct Job {
    first_message: u32,
    delivered: u64,
    /// It ends with so many delivered; 0: with its program.
    limit: u64,
    alive: usize,
    started: Option<Picoseconds>,
    completed: Option<Picoseconds>,
}

impl Study {
    /// Runs it whole.
    ///
    /// # Errors
    /// [`KeycacheError::Stuck`] if everybody waits for somebody, [`KeycacheError::TooLong`] if it takes longer than virtual time goes.
    pub fn run(&self, seed: u64) -> Result<RunOutcome, KeycacheError> {
        let mut run = self.start(seed)?;
        run.advance(u64::MAX)?;
        Ok(run.outcome())
    }

    /// Begins a run, to go on with in slices.
    ///
    /// # Errors
    /// [`KeycacheError`] if the cards can't be made.
    pub fn start(&self, seed: u64) -> Result<Run<'_>, KeycacheError> {
        Run::new(self, seed)
    }
}

impl<'a> Run<'a> {
    fn new(study: &'a Study, seed: u64) -> Result<Self, KeycacheError> {
        let parameters = &study.parameters;
        let mut random = SplitMix64::new(seed);
        let (jobs, flights) = flights(study);
        let processes = processes(study, &mut random);
        let alive = processes.iter().filter(|process| process.lives()).count();
        let rules = SchedulerRules::new(parameters);
        let mut run = Self {
            study,
            seed,
            rules,
            ranks_per_card: RanksPerCard::stated(parameters.ranks_per_card),
            context_switch: Picoseconds::from_nanoseconds(parameters.context_switch_ns),
            agenda: PacketAgenda::new(),
            now: Picoseconds::ZERO,
            network: Network::new(parameters, study.jobs.len())?,
            flights,
            processors: processors(parameters, &processes, &mut random),
            processes,
            turns: None,
            jobs,
            alive,
            waiting: 0,
            on_the_way: 0,
            messages: 0,
            payload_bytes: 0,
            message_latency: LatencyRecorder::new(),
            context_switches: 0,
            spun: Picoseconds::ZERO,
            computed: Picoseconds::ZERO,
            events: 0,
            watched: (Picoseconds::ZERO, (Picoseconds::ZERO, 0)),
            digest: RunDigest::default(),
        };
        run.begin(&mut random);
        Ok(run)
    }

    /// Plans what happens without a cause. Each processor begins, boosts and so on at its own time.
    fn begin(&mut self, random: &mut SplitMix64) {
        let parameters = &self.study.parameters;
        let spread = Picoseconds::from_nanoseconds(parameters.start_spread_ns);
        let live: Vec<u16> = (0..self.jobs.len() as u16)
            .filter(|job| self.jobs[usize::from(*job)].alive > 0)
            .collect();
        if let Some(slice) = self.rules.turns {
            if let (Slice::Of(length), 2..) = (slice, live.len()) {
                self.agenda.plan(length, Event::Turn);
            }
            self.turns = Some(Turns::new(live));
        }
        for rank in 0..self.processors.len() as u16 {
            let starts = Picoseconds(random.below(spread.0 + 1));
            let generation = self.processors[usize::from(rank)].generation;
            self.agenda
                .plan(starts, Event::Processor { rank, generation });
            if let Some(period) = self.rules.boost_period {
                let phase = Picoseconds(random.below(period.0.max(1)));
                self.agenda.plan(phase, Event::Boost(rank));
            }
        }
    }

    /// Handles up to so many events; says whether the run is finished.
    ///
    /// # Errors
    /// [`KeycacheError::Stuck`] if everybody waits for somebody, [`KeycacheError::Starved`] if those who wait keep the others
    /// from their work, [`KeycacheError::TooLong`] if virtual time ends.
    pub fn advance(&mut self, events: u64) -> Result<bool, KeycacheError> {
        for _ in 0..events {
            if self.is_finished() {
                return Ok(true);
            }
            let Some((at, event)) = self.agenda.next() else {
                return Err(self.stuck());
            };
            if at >= Picoseconds::END {
                return Err(KeycacheError::TooLong);
            }
            self.now = at;
            self.events += 1;
            self.handle(event);
            self.watch()?;
            if self.on_the_way == 0 && self.waiting == self.alive && self.alive > 0 {
                return Err(self.stuck());
            }
        }
        Ok(self.is_finished())
    }

    /// Looks from time to time whether anybody still gets on. A scheduler can give the processor to those who spin, for ever.
    fn watch(&mut self) -> Result<(), KeycacheError> {
        if !self.events.is_multiple_of(WATCH_EVENTS) {
            return Ok(());
        }
        let done = (self.computed, self.messages);
        if done != self.watched.1 {
            self.watched = (self.now, done);
            return Ok(());
        }
        let idle = Picoseconds(self.now.0.saturating_sub(self.watched.0.0));
        if idle < STARVED {
            return Ok(());
        }
        Err(KeycacheError::Starved {
            scheduler: self.study.parameters.scheduler.name(),
            seconds: STARVED.0 / 1_000_000_000_000,
        })
    }

    /// Whether all processes have ended and nothing that they sent is on its way.
    fn is_finished(&self) -> bool {
        self.alive == 0 && self.on_the_way == 0
    }

    fn handle(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Delivered(message) => self.delivered(message),
            Event::Processor { rank, generation } => self.due(rank, generation),
            Event::Boost(rank) => self.boost(rank),
            Event::Turn => self.turn(),
            other => {
                let agenda = &mut self.agenda;
                let flights = &mut self.flights;
                match (&mut self.network, other) {
                    (Network::Packets(network), Event::Transmit(node)) => {
                        network.transmit(node, now, flights, agenda);
                    }
                    (Network::Packets(network), Event::AtSwitch(packet)) => {
                        network.at_switch(packet, now, agenda);
                    }
                    (Network::Packets(network), Event::AtCard(packet)) => {
                        let out = network.at_card(packet, now, flights, agenda);
                        self.digest.word(out.0);
                    }
                    (Network::Packets(network), Event::Request(input)) => {
                        network.request(input, now, agenda);
                    }
                    (Network::Packets(network), Event::Arbitrate(output)) => {
                        network.arbitrate(output, now, agenda);
                    }
                    (Network::Messages(network), Event::Arriving(message)) => {
                        network.arriving(message, now, flights, agenda);
                    }
                    (Network::Messages(network), Event::FlowEnds(flow)) => {
                        if let Some(message) = network.ending(flow, now, agenda) {
                            self.delivered(message);
                        }
                    }
                    // Each network plans its own events only.
                    _ => {}
                }
            }
        }
    }

    /// Where a process is in the list.
    fn place(&self, job: u16, rank: u16) -> usize {
        usize::from(job) * self.processors.len() + usize::from(rank)
    }

    fn stuck(&self) -> KeycacheError {
        let waits = self
            .processes
            .iter()
            .find(|process| process.lives() && process.awaited.is_some());
        let (job, rank, peer) = waits.map_or((0, 0, 0), |process| {
            let flight = process
                .awaited
                .map(|awaited| &self.flights[awaited.message as usize]);
            let peer = flight.map_or(0, |flight| {
                if flight.destination == process.rank {
                    flight.source
                } else {
                    flight.destination
                }
            });
            (process.job, process.rank, peer)
        });
        KeycacheError::Stuck {
            job: job.into(),
            trace: self.study.jobs[usize::from(job)].name().to_owned(),
            rank: rank.into(),
            peer: peer.into(),
        }
    }

    /// How it went up to now.
    pub fn outcome(&self) -> RunOutcome {
        let time = |at: Option<Picoseconds>| at.unwrap_or_default().0;
        let jobs: Vec<JobOutcome> = self
            .jobs
            .iter()
            .zip(&self.study.jobs)
            .map(|(job, program)| JobOutcome {
                name: program.name().to_owned(),
                started_ps: time(job.started),
                completed_ps: time(job.completed),
            })
            .collect();
        let mut digest = self.digest.clone();
        for job in &jobs {
            digest.word(job.completed_ps);
        }
        let mut outcome = RunOutcome {
            finished: self.is_finished(),
            seed: self.seed,
            completion_ps: jobs.iter().map(|job| job.completed_ps).max().unwrap_or(0),
            jobs,
            messages: self.messages,
            payload_bytes: self.payload_bytes,
            message_latency: self.message_latency.summary(),
            context_switches: self.context_switches,
            spun_ps: self.spun.0,
            computed_ps: self.computed.0,
            events: self.events,
            digest: digest.value(),
            ..RunOutcome::default()
        };
        if let Network::Packets(network) = &self.network {
            outcome.packets = network.delivered;
            outcome.packet_latency = network.latency.summary();
            let mut memory = KeyMemoryTotal::default();
            for card in &network.cards {
                card.keys.memory.add_to(&mut memory);
                let (counters, joined) = card.keys.counters();
                outcome.lookups += counters.lookups();
                outcome.hits += counters.hits;
                outcome.prefetch_hits += counters.prefetch_hits;
                outcome.misses += counters.misses;
                outcome.evictions += counters.evictions;
                outcome.prefetches += counters.prefetches;
                outcome.joined_fetches += joined;
            }
            outcome.key_memory = memory.outcome();
        }
        outcome
    }
}

impl RankProcess<'_> {
    fn lives(&self) -> bool {
        self.state != RankState::Ended
    }
}

/// All messages, job by job.
fn flights(study: &Study) -> (Vec<Job>, Vec<Flight>) {
    let most = most_bytes(&study.parameters);
    let mut flights = Vec::new();
    let mut jobs = Vec::new();
    for (number, program) in study.jobs.iter().enumerate() {
        jobs.push(Job {
            first_message: flights.len() as u32,
            delivered: 0,
            limit: match program.ends_after() {
                0 => study.parameters.message_limit,
                own => own,
            },
            alive: program.ranks(),
            started: None,
            completed: None,
        });
        flights.extend(program.messages_planned().iter().map(|plan| {
            let bytes = plan.bytes.min(most);
            Flight {
                source: plan.source,
                destination: plan.destination,
                job: number as u16,
                state: 0,
                bytes,
                unsent: bytes,
                packets_left: 0,
                next: NOBODY,
                begun_at: Picoseconds::ZERO,
            }
        }));
    }
    (jobs, flights)
}

/// What of a message is sent, at most.
fn most_bytes(parameters: &Parameters) -> u32 {
    match parameters.message_packets_max {
        0 => u32::MAX,
        packets => packets.saturating_mul(parameters.packet_payload_bytes),
    }
}

/// A process for each job and rank; where a job has fewer ranks than the nodes have room for, one that has ended.
fn processes<'a>(study: &'a Study, random: &mut SplitMix64) -> Vec<RankProcess<'a>> {
    let mut processes = Vec::new();
    for (job, program) in study.jobs.iter().enumerate() {
        for rank in 0..study.parameters.ranks() as usize {
            let is_there = rank < program.ranks();
            processes.push(RankProcess {
                job: job as u16,
                rank: rank as u16,
                instructions: if is_there {
                    program.instructions(rank)
                } else {
                    &[]
                },
                next: 0,
                state: if is_there {
                    RankState::Runnable
                } else {
                    RankState::Ended
                },
                computing: Picoseconds::ZERO,
                awaited: None,
                spin_left: Picoseconds::ZERO,
                blocked_at: Picoseconds::ZERO,
                untaken: 0,
                random: SplitMix64::new(random.next_u64()),
            });
        }
    }
    processes
}

/// Each processor has its processes in an order of its own: that is all that a local scheduler of its own knows at first.
fn processors(
    parameters: &Parameters,
    processes: &[RankProcess<'_>],
    random: &mut SplitMix64,
) -> Vec<Processor> {
    let ranks = parameters.ranks() as usize;
    let jobs = processes.len() / ranks;
    let mut processors = Vec::with_capacity(ranks);
    for rank in 0..ranks {
        let mut ready = ReadyQueues::new(parameters, jobs);
        let mut order: Vec<u16> = (0..jobs)
            .filter(|job| processes[job * ranks + rank].lives())
            .map(|job| job as u16)
            .collect();
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last as u64 + 1) as usize);
        }
        for job in order {
            ready.add(job);
        }
        processors.push(Processor {
            running: None,
            last: None,
            since: Picoseconds::ZERO,
            generation: 0,
            ready,
            boosted: 0,
        });
    }
    processors
}
