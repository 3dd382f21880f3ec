//! Scenarios from a seed: topologies, programs, protections, sizes and faults of every kind.

use std::time::Duration;

use exoskel_flow::contract::{Contract, ItemsDeadline};
use exoskel_flow::{FunctionId, SchedulerConfig, Skeleton};
use exoskel_link::{CipherSuite, EpochLimits, Limits, Protection, Protections};
use exoskel_meaning::meaning::RAISING;
use exoskel_meaning::{Random, carries, program, renumbered};
use exoskel_task::message::ENVELOPE_BYTES_MAX;
use exoskel_task::payload::Format;

use super::handshake::agreed;
use super::scenario::{
    InjectedFault, KeyRoom, Node, Scenario, StreamScenario, TakingOrder, WorkerScenario, WriteEnd,
};
use crate::network::LinkModel;
use crate::service::Service;
use exoskel_determinism::SplitMix64;

/// No run has more steps than this.
const STEPS_MAX: u64 = 40_000_000;

/// A worker that is told to end has so long at most, if it hasn't all the time it needs.
const DRAIN_TIME: Duration = Duration::from_millis(50);

/// Programs of all patterns have so many items at most: each is made into many others.
const PATTERN_ITEMS_MAX: u64 = 40;

/// Skeletons are nested this deep at most.
const DEPTH_MAX: u32 = 3;

impl Scenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        Generator {
            random: SplitMix64::new(seed ^ 0x5EED_0F5C_E4A2_1057),
            later: SplitMix64::new(seed ^ 0x7A17_0DA7_A0F0_4161),
        }
        .scenario(seed)
    }
}

struct Generator {
    random: SplitMix64,
    /// For what was thought of later, so that the rest of a seed's scenario stays as it was.
    later: SplitMix64,
}

impl Generator {
    fn scenario(&mut self, seed: u64) -> Scenario {
        // Most runs are small: there are more of them, and what they find is easier to understand.
        let size = self.pick(&[1, 1, 1, 1, 1, 1, 2, 2, 2, 3]);
        let workers_max = self.pick(&[1, 2, 4, 4, 8]) * size * size / 2 + 1;
        let items_max = 60 * size * size * size;
        let manager = self.minimum();
        let count = 1 + self.random.below(workers_max);
        let workers: Vec<_> = (0..count).map(|_| self.worker()).collect();
        let limits = Limits {
            message_bytes_max: self.pick(&[256 << 10, 1 << 20, 1 << 24]),
            credit_bytes: self.pick(&[16 << 10, 1 << 20, 8 << 20]),
            ..Limits::default()
        };
        let streams = self.pick(&[1, 1, 1, 2, 3]);
        let streams: Vec<_> = (0..streams)
            .map(|_| self.stream(items_max, limits.message_bytes_max - 2 * ENVELOPE_BYTES_MAX))
            .collect();
        let link = LinkModel {
            latency: Duration::from_micros(self.pick(&[10, 100, 1000, 5000, 40_000])),
            jitter: Duration::from_micros(self.pick(&[0, 20, 2000])),
            bytes_per_second: self.pick(&[1 << 22, 1 << 25, 1 << 30]),
        };
        let config = self.config(limits.message_bytes_max);
        let mut scenario = Scenario {
            seed,
            manager_dials: self.chance(2),
            contract: None,
            has_initializer: false,
            minimum: manager,
            ciphers: self
                .pick(&[
                    &CipherSuite::ALL[..],
                    &[CipherSuite::Aes256Gcm],
                    &[CipherSuite::ChaCha20Poly1305],
                ])
                .to_vec(),
            limits,
            keys: self.key_room(),
            epoch: EpochLimits {
                bytes_max: self.pick(&[1 << 19, 1 << 22, 1 << 36]),
                records_max: self.pick(&[30, 1000, 1 << 30]),
                age_max: Duration::from_secs(self.pick(&[1, 60, 3600])),
            },
            segment_bytes: self.pick(&[1024, 16 << 10, 256 << 10]),
            dead_after: Duration::from_millis(self.pick(&[1000, 2000, 5000])),
            link,
            wire_bytes_max: self.pick(&[4 << 10, 64 << 10, 1 << 20]),
            timer_slack: Duration::from_micros(self.pick(&[0, 100, 5000])),
            config,
            faults: Vec::new(),
            broken_delivery: None,
            steps_max: STEPS_MAX,
            workers,
            streams,
        };
        scenario.faults = self.faults(&scenario);
        Self::patterns(&mut scenario);
        self.manager_crashes(&mut scenario);
        self.outcasts(&mut scenario);
        self.item_rules(&mut scenario);
        self.initializer(&mut scenario);
        self.absences(&mut scenario);
        self.drains(&mut scenario);
        if !contract(&mut scenario) {
            self.wants(&mut scenario);
        }
        late_poison(&mut scenario);
        journals(&mut scenario);
        // By numbers of their own, so that all else of a seed's scenario stays as it was.
        let mut own = SplitMix64::new(seed ^ 0x57A6_61E5_C091_E502);
        scenario.config.stragglers = [0, 110, 300][own.below(3) as usize];
        scenario.config.straggler_time = Duration::from_millis([2, 20][own.below(2) as usize]);
        scenario
    }

    fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.random.below(choices.len() as u64) as usize].clone()
    }

    /// True once in so many times.
    fn chance(&mut self, one_in: u64) -> bool {
        self.random.below(one_in) == 0
    }

    fn millis(&mut self, most: u64) -> Duration {
        self.random
            .between(Duration::ZERO, Duration::from_millis(most))
    }

    fn key_room(&mut self) -> KeyRoom {
        let room = KeyRoom {
            contexts: self.pick(&[1, 5, 4096]),
            compact: self.pick(&[0, 3, 1000]),
        };
        // A third number was drawn here once. Seeds stay what they are.
        self.random.next_u64();
        room
    }

    fn minimum(&mut self) -> Protections {
        let [plain, integrity, encrypted] = Protection::ALL;
        Protections {
            control: self.pick(&[integrity, encrypted]),
            code: self.pick(&[integrity, encrypted]),
            data: self.pick(&[plain, integrity, encrypted]),
        }
    }

    fn worker(&mut self) -> WorkerScenario {
        WorkerScenario {
            host: 0,
            lacks: Vec::new(),
            initializer_raises: false,
            in_domain: false,
            slowness: self.pick(&[1, 1, 1, 2, 7]),
            minimum: self.minimum(),
            is_relayed: self.chance(6),
            format: if self.chance(3) {
                Format::Data
            } else {
                Format::Pickle
            },
            drift: self.pick(&[-300, 0, 0, 200]),
            joins_at: self.pick(&[Duration::ZERO, Duration::from_millis(30)]),
            rejoins_after: self.millis(800),
        }
    }

    fn skeleton(&mut self, depth: u32, functions: &mut u32) -> Skeleton {
        let kind = if depth == 0 { 0 } else { self.random.below(4) };
        match kind {
            0 => {
                *functions += 1;
                Skeleton::Seq(FunctionId(*functions - 1))
            }
            1 | 2 => Skeleton::Farm(Box::new(self.skeleton(depth - 1, functions))),
            _ => {
                let stages = 2 + self.random.below(2);
                let stages = (0..stages).map(|_| self.skeleton(depth - 1, functions));
                Skeleton::Pipeline(stages.collect())
            }
        }
    }

    fn stream(&mut self, items_max: u64, bytes_max: u64) -> StreamScenario {
        let input_bytes_max = self.pick(&[16, 200, 200, 5000, 60_000]).min(bytes_max);
        let result_bytes_max = self.pick(&[16, 200, 200, 5000, 60_000, 250_000]);
        let heavy = input_bytes_max + result_bytes_max > 50_000;
        let items = 1 + self
            .random
            .below(if heavy { items_max / 4 + 1 } else { items_max });
        let unbounded = self.chance(4);
        let order = if unbounded || self.chance(4) {
            TakingOrder::Completion
        } else {
            TakingOrder::Admission
        };
        let micros = Duration::from_micros(self.pick(&[1, 20, 300, 3000, 30_000]));
        let service = match self.random.below(4) {
            0 => Service::Fixed(micros),
            1 => Service::Rare {
                usual: micros,
                slow: micros * 100,
                one_in: 30,
            },
            _ => Service::Uniform(Duration::ZERO, micros * 2),
        };
        let cancels = order == TakingOrder::Completion && self.chance(3);
        let mut functions = 0;
        let mut skeleton = self.skeleton(DEPTH_MAX, &mut functions);
        if self.chance(3) {
            let raising = self.random.below(u64::from(functions)) as u32;
            skeleton = renumbered(&skeleton, &mut |FunctionId(number)| {
                FunctionId(number + if number == raising { RAISING } else { 0 })
            });
        }
        StreamScenario {
            skeleton,
            items,
            service,
            input_bytes_max,
            result_bytes_max,
            has_bulk: self.chance(2),
            order,
            unbounded,
            opens_at: self.pick(&[Duration::ZERO, Duration::from_millis(20)]),
            batch_max: self.pick(&[1, 10, 1000]),
            take_time: Duration::from_micros(self.pick(&[0, 0, 0, 500])),
            poison: if self.chance(12) {
                vec![self.random.below(items)]
            } else {
                Vec::new()
            },
            poison_time: Duration::ZERO,
            unsent_one_in: [0, 0, 7][self.later.below(3) as usize],
            pickled_one_in: [0, 0, 5][self.later.below(3) as usize],
            retriable_one_in: 0,
            hangs_one_in: 0,
            timeout: Duration::ZERO,
            cancels_one_in: if cancels { 10 } else { 0 },
            closes_after: self.chance(8).then(|| self.random.below(items)),
            has_journal: false,
        }
    }

    /// Every other stream has a program of all patterns.
    fn patterns(scenario: &mut Scenario) {
        let message_bytes_max = scenario.limits.message_bytes_max;
        // A list has several values.
        let result_bytes_max = if message_bytes_max < 1 << 20 {
            2000
        } else {
            20_000
        };
        for (number, stream) in (0..).zip(&mut scenario.streams) {
            let mut random = Random::new(scenario.seed ^ 0x9A77_E245 ^ number << 40);
            if random.is(2) {
                continue;
            }
            let raises = random.is(3);
            // By numbers of its own: the programs of all others stay as they were.
            let mut own = Random::new(scenario.seed ^ 0x5CA4_57A7 ^ number << 40);
            stream.skeleton = match own.is(2) {
                true => program(&mut own, raises, true),
                false => program(&mut random, raises, false),
            };
            stream.items = stream.items.min(PATTERN_ITEMS_MAX);
            stream.poison.retain(|index| *index < stream.items);
            // A row with states keeps its large results: some are over a limit, with the state or without it.
            if !is_row_with_states(&stream.skeleton) {
                stream.result_bytes_max = stream.result_bytes_max.min(result_bytes_max);
            }
            // Whoever hands items over without an end has one outcome for each.
            stream.unbounded &= stream.skeleton.keeps_number();
        }
    }

    fn config(&mut self, message_bytes_max: u64) -> SchedulerConfig {
        SchedulerConfig {
            frame_items_max: self.pick(&[1, 7, 4096, 4096]),
            frame_bytes_max: self.pick(&[4 << 10, 1 << 20]).min(message_bytes_max / 3),
            window_bytes_max: self.pick(&[64 << 10, 4 << 20]),
            window_frames_max: self.pick(&[2, 20, 1024]),
            retries: self.pick(&[1, 2, 3, 3]),
            result_budget_bytes: self.pick(&[64 << 10, 1 << 20, 128 << 20]),
            input_budget_bytes: self.pick(&[64 << 10, 64 << 20]),
            grant_bytes: self.pick(&[64, 4 << 10, 64 << 10]),
            grant_bytes_min: self.pick(&[16, 4 << 10]),
            tickets_max: self.pick(&[5, 100, 32_768]),
            submitted_max: self.pick(&[16, 1 << 24]),
            ..SchedulerConfig::default()
        }
    }

    fn faults(&mut self, scenario: &Scenario) -> Vec<(Duration, InjectedFault)> {
        if self.chance(4) {
            return Vec::new();
        }
        let horizon = horizon(scenario);
        let count = 1 + self.random.below(10);
        let mut faults = Vec::new();
        for _ in 0..count {
            let at = self.random.between(Duration::ZERO, horizon);
            self.fault(scenario, at, &mut faults);
        }
        faults.sort_by_key(|(at, _)| *at);
        faults
    }

    /// Now and then the manager crashes, whatever else goes wrong. Drawn last: what seeds were before managers crashed, they
    /// are still.
    fn manager_crashes(&mut self, scenario: &mut Scenario) {
        for _ in 0..self.pick(&[0, 0, 1, 2, 0, 0, 0]) {
            let at = self.random.between(Duration::ZERO, horizon(scenario));
            let crash = InjectedFault::Crash {
                node: Node::Manager,
                silent: self.chance(2),
                restart: self.pick(&[Duration::ZERO, Duration::from_millis(300)])
                    + self.millis(300),
            };
            scenario.faults.push((at, crash));
        }
        scenario.faults.sort_by_key(|(at, _)| *at);
    }

    /// Workers of several slots, and those that are of no use or not for long. Drawn behind all else, too.
    fn outcasts(&mut self, scenario: &mut Scenario) {
        let later = &mut self.later;
        let mut one_in = |count| later.below(count) == 0;
        let (has_hosts, has_unfit) = (one_in(3), one_in(5));
        let mut host = 0;
        for number in 0..scenario.workers.len() {
            let joins_host = number > 0 && has_hosts && one_in(2);
            host += usize::from(number > 0 && !joins_host);
            let lacks = if joins_host {
                scenario.workers[number - 1].lacks.clone()
            } else if has_unfit && one_in(3) {
                vec!["numpy".to_owned()]
            } else {
                Vec::new()
            };
            scenario.workers[number].host = host;
            scenario.workers[number].lacks = lacks;
        }
        let horizon = horizon(scenario);
        for (one_in, is_worn) in [(5, false), (6, true)] {
            if self.later.below(one_in) > 0 {
                continue;
            }
            let worker = self.later.below(scenario.workers.len() as u64) as usize;
            let at = self.later.between(Duration::ZERO, horizon);
            let fault = if is_worn {
                InjectedFault::WearOut { worker }
            } else {
                InjectedFault::Revoke { worker }
            };
            scenario.faults.push((at, fault));
        }
        scenario.faults.sort_by_key(|(at, _)| *at);
    }

    /// Items that run again, and that must be ended. Drawn last of all.
    fn item_rules(&mut self, scenario: &mut Scenario) {
        for stream in &mut scenario.streams {
            stream.retriable_one_in = [0, 0, 0, 3, 20][self.later.below(5) as usize];
            stream.hangs_one_in = [0, 0, 0, 0, 30][self.later.below(5) as usize];
            if stream.hangs_one_in > 0 {
                // Far more than any item takes by itself at the slowest worker.
                stream.timeout = Duration::from_secs(2);
                stream.service = Service::Fixed(Duration::from_millis(1));
                // As many as there can be in a run that ends: each takes its slot.
                stream.items = stream.items.min(100);
                stream.poison.retain(|index| *index < stream.items);
                // An exception of a few words must have room in it.
                let least = &mut scenario.config.grant_bytes_min;
                *least = (*least).max(4 << 10);
            }
        }
    }

    /// Now and then slots have an initializer, which raises at some workers. Drawn behind all else as well.
    fn initializer(&mut self, scenario: &mut Scenario) {
        scenario.has_initializer = self.later.below(3) == 0;
        let mut raising = None;
        for worker in &mut scenario.workers {
            let (_, raises) = *raising
                .filter(|(host, _)| *host == worker.host)
                .get_or_insert_with(|| (worker.host, self.later.below(6) == 0));
            worker.initializer_raises = scenario.has_initializer && raises;
            raising = Some((worker.host, raises));
        }
    }

    /// Workers, wires and managers that are away for much longer than anybody waits for a sign of life. Drawn last of all.
    fn absences(&mut self, scenario: &mut Scenario) {
        if self.later.below(4) > 0 {
            return;
        }
        let at = self.later.between(Duration::ZERO, horizon(scenario));
        let seconds = 1 + self.later.below(30);
        let until = at + Duration::from_secs(seconds);
        let faults = &mut scenario.faults;
        let kind = self.later.below(3);
        if kind == 0 {
            let node = Node::Manager;
            faults.extend([
                (at, InjectedFault::Hold(node)),
                (until, InjectedFault::Release(node)),
            ]);
        } else {
            for worker in 0..scenario.workers.len() {
                let repair = InjectedFault::Repair { worker };
                if kind == 1 {
                    let (from, to) = (true, true);
                    let cut = InjectedFault::Partition { worker, from, to };
                    faults.extend([(at, cut), (until, repair)]);
                    continue;
                }
                let node = Node::Worker(worker);
                let crash = InjectedFault::Crash {
                    node,
                    silent: self.later.below(2) == 0,
                    restart: Duration::from_millis(200),
                };
                let refuse = InjectedFault::Refuse { worker };
                faults.extend([(at, refuse), (at, crash), (until, repair)]);
            }
        }
        scenario.faults.sort_by_key(|(at, _)| *at);
    }

    /// Workers that are told to end, some of which don't have the time for it. Drawn behind all else, too.
    fn drains(&mut self, scenario: &mut Scenario) {
        if self.later.below(3) > 0 {
            return;
        }
        let horizon = horizon(scenario);
        for _ in 0..=self.later.below(4) {
            let worker = self.later.below(scenario.workers.len() as u64) as usize;
            let at = self.later.between(Duration::ZERO, horizon);
            scenario.faults.push((at, InjectedFault::Drain { worker }));
            // Its results may wait for a grant that comes when somebody else has done older items.
            let time = if self.later.below(3) == 0 {
                self.later.between(Duration::ZERO, DRAIN_TIME)
            } else {
                DRAIN_TIME
            };
            let fault = InjectedFault::Leave { worker };
            scenario.faults.push((at + time, fault));
        }
        scenario.faults.sort_by_key(|(at, _)| *at);
    }

    /// A contract that needs fewer slots for a while, and all of them in the end. Drawn behind all else, too.
    fn wants(&mut self, scenario: &mut Scenario) {
        let slots = scenario.workers.len() as u64;
        if slots < 2 || self.later.below(3) > 0 {
            return;
        }
        let horizon = horizon(scenario);
        let mut last = Duration::ZERO;
        for _ in 0..=self.later.below(4) {
            let at = self.later.between(Duration::ZERO, horizon);
            let fewer = 1 + self.later.below(slots - 1) as u32;
            scenario.faults.push((at, InjectedFault::Want(fewer)));
            last = last.max(at);
        }
        let all = InjectedFault::Want(slots as u32);
        scenario
            .faults
            .push((last + Duration::from_millis(20), all));
        scenario.faults.sort_by_key(|(at, _)| *at);
    }

    fn fault(
        &mut self,
        scenario: &Scenario,
        at: Duration,
        faults: &mut Vec<(Duration, InjectedFault)>,
    ) {
        let worker = self.random.below(scenario.workers.len() as u64) as usize;
        let node = if self.chance(4) {
            Node::Manager
        } else {
            Node::Worker(worker)
        };
        let dead_after = scenario.dead_after;
        // Sometimes nobody notices, sometimes the other side has given up long before.
        let lasting = self.pick(&[dead_after / 20, dead_after / 2, dead_after * 3]);
        let lasting = self.random.between(Duration::ZERO, lasting);
        let fault = match self.random.below(10) {
            0 => {
                let (from, to) = self.pick(&[(true, true), (true, false), (false, true)]);
                faults.push((at + lasting, InjectedFault::Repair { worker }));
                InjectedFault::Partition { worker, from, to }
            }
            1 => {
                faults.push((at + lasting, InjectedFault::Release(node)));
                InjectedFault::Hold(node)
            }
            2 | 3 => InjectedFault::Crash {
                node: Node::Worker(worker),
                silent: self.chance(3),
                restart: self.millis(500),
            },
            4 => InjectedFault::Leave { worker },
            5 => InjectedFault::Cut { worker },
            6 => {
                let own = &scenario.workers[worker];
                let both = agreed(scenario.minimum, own.minimum, own.is_relayed);
                // What is altered on a plain wire is nobody's promise.
                if both.data == Protection::Plain {
                    return;
                }
                let to_manager = self.chance(2);
                InjectedFault::Alter { worker, to_manager }
            }
            7 => InjectedFault::Slow {
                worker,
                slowness: self.pick(&[1, 3, 20]),
            },
            8 => InjectedFault::Jump { node, by: lasting },
            _ => InjectedFault::Raise(self.minimum()),
        };
        faults.push((at, fault));
    }
}

/// Until when things go wrong: mostly while there is something to do.
fn horizon(scenario: &Scenario) -> Duration {
    let slots = scenario.workers.len() as u32;
    let work = scenario.streams.iter().map(|stream| {
        let once = (0..stream.items).map(|index| stream.service.time(scenario.seed, index));
        stream.opens_at + once.sum::<Duration>() * 2 / slots
    });
    work.max().unwrap_or_default() + scenario.link.latency * 30 + Duration::from_millis(40)
}

/// Now and then the manager has a contract that leaves something to decide, and work that lasts. By numbers of its own, so that all else of a seed's
/// scenario stays as it was.
fn contract(scenario: &mut Scenario) -> bool {
    let mut random = SplitMix64::new(scenario.seed ^ 0xC0A7_2AC7_5107_5EED);
    let workers = scenario.workers.len() as u64;
    let hangs = scenario
        .streams
        .iter()
        .any(|stream| stream.hangs_one_in > 0);
    if workers < 2 || hangs || random.below(2) > 0 {
        return false;
    }
    let slots_min = 1 + random.below(workers - 1) as u32;
    let slots_max = slots_min + 1 + random.below(workers - u64::from(slots_min)) as u32;
    let mean = Duration::from_millis([50, 200, 400][random.below(3) as usize]);
    // Items that take less time after a while leave slots over.
    let becomes_faster = random.below(2) == 0;
    let mean = if becomes_faster {
        mean.max(Duration::from_millis(200))
    } else {
        mean
    };
    for stream in &mut scenario.streams {
        stream.service = match random.below(2) {
            0 => Service::Fixed(mean),
            _ => Service::Uniform(Duration::ZERO, mean * 2),
        };
        stream.items = stream.items.min(100);
        stream.poison.retain(|index| *index < stream.items);
    }
    if becomes_faster {
        for stream in &mut scenario.streams {
            if stream.skeleton.keeps_number() && stream.closes_after.is_none() {
                stream.items = 400;
                break;
            }
        }
        let faster_at = Duration::from_secs(3 + random.below(10));
        for (number, worker) in scenario.workers.iter_mut().enumerate() {
            worker.slowness = 4;
            let faster = InjectedFault::Slow {
                worker: number,
                slowness: 1,
            };
            scenario.faults.push((faster_at, faster));
        }
        scenario.faults.sort_by_key(|(at, _)| *at);
    }
    let full = 1.0 / mean.as_secs_f64();
    let items: u64 = scenario.streams.iter().map(|stream| stream.items).sum();
    let kind = if becomes_faster { 1 } else { random.below(3) };
    for worker in &mut scenario.workers {
        worker.in_domain = random.below(2) == 0;
    }
    scenario.contract = Some(Contract {
        slots_min,
        slots_max,
        throughput: (kind == 1).then(|| full * (1 + random.below(workers)) as f64 / 2.0),
        deadline: (kind == 2).then(|| ItemsDeadline {
            time: Duration::from_secs(1 + random.below(30)),
            items,
        }),
        // At least one slot may work, wherever it is.
        remote_max: (random.below(3) == 0).then(|| 1 + random.below(workers) as u32),
    });
    true
}

/// Some deadly items take their slots down only after they have run for long.
fn late_poison(scenario: &mut Scenario) {
    let mut random = SplitMix64::new(scenario.seed ^ 0x1A7E_9015_0A00_5EED);
    for stream in &mut scenario.streams {
        let millis = [0, 100, 1000][random.below(3) as usize];
        stream.poison_time = Duration::from_millis(millis);
        if stream.poison.is_empty() && random.below(12) == 0 {
            stream.poison = vec![random.below(stream.items)];
        }
    }
}

/// Some streams go to a sink with a journal, and some of their managers end in a write. By numbers of its own, so that all else of a seed's scenario stays
/// as it was.
fn journals(scenario: &mut Scenario) {
    let mut random = SplitMix64::new(scenario.seed ^ 0x10A2_7A15_0F1E_5EED);
    for stream in &mut scenario.streams {
        if random.below(3) > 0 || !may_have_journal(&stream.skeleton) {
            continue;
        }
        stream.has_journal = true;
        // A run has all outcomes, in order where items have any number of them.
        stream.closes_after = None;
        stream.cancels_one_in = 0;
        stream.unbounded = false;
        stream.order = match stream.skeleton.keeps_number() {
            true => TakingOrder::Completion,
            false => TakingOrder::Admission,
        };
    }
    if !scenario.streams.iter().any(|stream| stream.has_journal) {
        return;
    }
    let horizon = horizon(scenario);
    for _ in 0..[0, 1, 1, 2, 3, 4][random.below(6) as usize] {
        let at = random.between(Duration::ZERO, horizon);
        let end = InjectedFault::EndInWrite {
            writes: random.below(60),
            end: [WriteEnd::HostGone, WriteEnd::Killed, WriteEnd::DiskFull]
                [random.below(3) as usize],
            restart: random.between(Duration::ZERO, Duration::from_millis(300)),
        };
        scenario.faults.push((at, end));
    }
    scenario.faults.sort_by_key(|(at, _)| *at);
}

/// Whether a run of this program can have a journal here: one with a state that is carried can't, and a reduction goes to the manager's process in slices.
fn may_have_journal(skeleton: &Skeleton) -> bool {
    match skeleton {
        Skeleton::Reduce { .. } | Skeleton::Stateful { .. } | Skeleton::Scan { .. } => false,
        Skeleton::Pipeline(stages) => stages.iter().all(may_have_journal),
        _ => true,
    }
}

/// Whether a program has states and no lists.
fn is_row_with_states(skeleton: &Skeleton) -> bool {
    fn is_row(skeleton: &Skeleton) -> bool {
        match skeleton {
            Skeleton::Seq(_) | Skeleton::Stateful { .. } | Skeleton::Scan { .. } => true,
            Skeleton::Farm(inner) => is_row(inner),
            Skeleton::Pipeline(stages) => stages.iter().all(is_row),
            _ => false,
        }
    }
    carries(skeleton) && is_row(skeleton)
}
