//! The planner alone, against work that flows evenly.

use super::*;

const LOOK: Duration = Duration::from_millis(250);

/// Work that flows as fast as the slowest of slots, source, serial function and reader lets it.
struct Flow {
    planner: Planner,
    now: Duration,
    slots: u32,
    /// Slots that come, and when.
    coming: Vec<Duration>,
    /// Seconds of a slot for an item.
    cost: f64,
    source: f64,
    serial: f64,
    reader: f64,
    /// The share of the time with items that is spent in functions.
    at_work: f64,
    room: (u32, u32),
    remote: u32,
    /// Slots that were lost and not replaced.
    lost: u32,
    done: f64,
    occupied: f64,
    decisions: Vec<(Duration, SlotDecision)>,
}

impl Flow {
    fn new(contract: Contract) -> Self {
        let slots = contract.slots_min;
        Self {
            planner: Planner::new(contract, PlannerSettings::default()),
            now: Duration::ZERO,
            slots,
            coming: Vec::new(),
            cost: 0.1,
            source: f64::INFINITY,
            serial: f64::INFINITY,
            reader: f64::INFINITY,
            at_work: 1.0,
            room: (100, 0),
            remote: 0,
            lost: 0,
            done: 0.0,
            occupied: 0.0,
            decisions: Vec::new(),
        }
    }

    fn step(&mut self) {
        self.now += LOOK;
        let here = self.coming.extract_if(.., |at| *at <= self.now).count();
        self.slots += here as u32;
        let by_slots = f64::from(self.slots) / self.cost;
        let rate = by_slots.min(self.source).min(self.serial).min(self.reader);
        let seconds = LOOK.as_secs_f64();
        self.done += rate * seconds;
        self.occupied += rate * self.cost * seconds;
        let is_full = rate >= by_slots;
        // Items that are done were answered, and those that are not are under way.
        let answered = self.occupied - self.done.fract() * self.cost;
        let answered = answered.clamp(0.0, self.occupied);
        let serial = Duration::from_secs_f64(1.0 / self.serial);
        let finished = self.done as u64;
        let waits = if is_full { 50 } else { 0 };
        let by_serial = if rate == self.serial { 50 } else { 0 };
        let observation = Observation {
            workload: Workload {
                admitted: finished + 100,
                finished,
                busy: Duration::from_secs_f64(answered * self.at_work),
                occupied: Duration::from_secs_f64(answered),
                underway: Duration::from_secs_f64(self.occupied - answered),
                latest: Duration::from_secs_f64((self.occupied - answered) / f64::from(self.slots)),
                running: self.slots,
                slots: self.slots,
                ready: waits + by_serial,
                ready_for_serial: by_serial,
                out: u64::from(self.slots),
                takes_input: true,
                waits_for_reader: rate == self.reader,
                serial: if self.serial.is_finite() {
                    serial
                } else {
                    Duration::ZERO
                },
            },
            trusted: Supply {
                slots: self.planner.target() - self.remote - self.lost,
                room: self.room.0,
            },
            remote: Supply {
                slots: self.remote,
                room: self.room.1,
            },
        };
        let Some(decision) = self.planner.look(&observation, self.now) else {
            return;
        };
        match &decision {
            SlotDecision::Recruit {
                trusted, remote, ..
            } => {
                let at = self.now + Duration::from_millis(700);
                self.coming.extend((0..trusted + remote).map(|_| at));
                self.room.0 -= trusted;
                self.room.1 -= remote;
                self.remote += remote;
            }
            SlotDecision::Release { slots, .. } => self.slots -= slots,
            SlotDecision::Lacks(_) | SlotDecision::Met { .. } => {}
        }
        self.decisions.push((self.now, decision));
    }

    fn play(&mut self, seconds: u64) {
        let end = self.now + Duration::from_secs(seconds);
        while self.now < end {
            self.step();
        }
    }

    fn lacks(&self) -> Vec<String> {
        let lacks = self
            .decisions
            .iter()
            .filter_map(|(_, decision)| match decision {
                SlotDecision::Lacks(lack) => Some(lack.to_string()),
                _ => None,
            });
        lacks.collect()
    }

    /// Whether slots were recruited (true) or released, in order.
    fn moves(&self) -> Vec<bool> {
        let moves = self
            .decisions
            .iter()
            .filter_map(|(_, decision)| match decision {
                SlotDecision::Recruit { .. } => Some(true),
                SlotDecision::Release { .. } => Some(false),
                _ => None,
            });
        moves.collect()
    }
}

fn range(slots_min: u32, slots_max: u32) -> Contract {
    Contract {
        slots_max,
        ..Contract::fixed(slots_min)
    }
}

fn throughput(rate: f64, slots_max: u32) -> Contract {
    Contract {
        throughput: Some(rate),
        ..range(1, slots_max)
    }
}

#[test]
fn a_throughput_is_met_with_as_many_slots_as_it_needs() {
    let mut flow = Flow::new(throughput(100.0, 64));
    flow.play(10);
    assert!((10..=11).contains(&flow.slots), "{}", flow.slots);
    flow.cost = 0.2;
    flow.play(10);
    assert!((20..=21).contains(&flow.slots), "{}", flow.slots);
    flow.play(60);
    assert!((20..=21).contains(&flow.slots), "{}", flow.slots);
    assert!(flow.moves().iter().all(|is_up| *is_up));
    assert!(matches!(
        flow.decisions.last(),
        Some((_, SlotDecision::Met { .. }))
    ));
}

/// Items of seconds: two of them that end in one look are no rate.
#[test]
fn what_few_items_show_is_not_believed_and_long_ones_are_seen_before_they_end() {
    let mut flow = Flow::new(throughput(0.5, 8));
    flow.cost = 8.0;
    flow.play(120);
    assert!((4..=5).contains(&flow.slots), "{}", flow.slots);
    let mut grown = flow
        .decisions
        .iter()
        .filter(|(_, decision)| matches!(decision, SlotDecision::Recruit { .. }));
    let (last, _) = grown.next_back().expect("slots were asked for");
    assert!(*last <= Duration::from_secs(100), "{:?}", flow.decisions);
    let met = flow
        .decisions
        .iter()
        .find_map(|(at, decision)| match decision {
            SlotDecision::Met { rate, .. } => Some((*at, *rate)),
            _ => None,
        });
    let (at, rate) = met.expect("it is met");
    assert!(at > *last && (0.48..0.7).contains(&rate), "{at:?} {rate}");
}

#[test]
fn a_surplus_that_lasts_is_given_back() {
    let mut flow = Flow::new(throughput(100.0, 64));
    flow.source = 105.0;
    flow.cost = 0.2;
    flow.play(15);
    assert!((20..=21).contains(&flow.slots), "{}", flow.slots);
    flow.cost = 0.1;
    flow.play(6);
    assert!(flow.slots >= 20, "given back after less than a window");
    flow.play(30);
    assert!((10..=13).contains(&flow.slots), "{}", flow.slots);
    flow.play(60);
    assert!((10..=13).contains(&flow.slots), "{}", flow.slots);
}

#[test]
fn more_slots_are_no_remedy_for_what_else_limits() {
    type Change = fn(&mut Flow);
    let cases: [(&str, Change); 4] = [
        ("do not come in faster", |flow| flow.source = 50.0),
        ("not taken faster", |flow| flow.reader = 50.0),
        ("a serial function does", |flow| flow.serial = 50.0),
        ("wait for the manager or its wires", |flow| {
            flow.at_work = 0.1
        }),
    ];
    for (why, limit) in cases {
        let mut flow = Flow::new(throughput(100.0, 64));
        limit(&mut flow);
        flow.play(40);
        let lacks = flow.lacks();
        assert!(
            lacks.len() == 1 && lacks[0].contains(why),
            "{why}: {lacks:?}"
        );
        // What the contract would need is asked for while slots are full, and nothing beyond.
        assert!(flow.slots <= 11, "{why}: {} slots", flow.slots);
    }
}

/// Aim: where one serial function is nearly all of the work, a throughput is kept, told to be lacking, or a second slot is tried; and none is where
/// the function can't do it. Method: throughputs around what it can do.
#[test]
fn a_serial_function_is_nearly_all_of_the_work() {
    for percent in 90..=120 {
        let rate = f64::from(percent) / 100.0 * 50.0;
        let mut flow = Flow::new(throughput(rate, 8));
        flow.cost = 0.0205;
        flow.serial = 50.0;
        flow.play(40);
        let is_met =
            |(_, decision): &(_, SlotDecision)| matches!(decision, SlotDecision::Met { .. });
        let is_told = !flow.lacks().is_empty() || flow.decisions.iter().any(is_met);
        assert!(is_told, "{percent} %: nobody knows");
        let can_be = percent <= 103;
        assert!(
            can_be || flow.slots == 1,
            "{percent} %: {} slots",
            flow.slots
        );
        assert!(flow.slots <= 2, "{percent} %: {} slots", flow.slots);
    }
}

/// Aim: a deadline asks for no slots that would wait for a serial function. Method: rates around what that can do.
#[test]
fn a_deadline_asks_for_no_slots_beside_a_serial_function() {
    for percent in [50, 90, 120, 200, 400] {
        let mut contract = range(1, 8);
        contract.deadline = Some(ItemsDeadline {
            time: Duration::from_secs(60),
            items: 60 * 50 * percent / 100,
        });
        let mut flow = Flow::new(contract);
        flow.cost = 0.0202;
        flow.serial = 50.0;
        flow.play(50);
        assert_eq!(flow.slots, 1, "{percent} %");
        let can_be = percent < 100;
        assert_eq!(flow.lacks().is_empty(), can_be, "{percent} %");
    }
}

/// Aim: what was kept before and after a short pause is told once, and again behind what was told to be lacking.
#[test]
fn a_kept_contract_is_told_once() {
    let met = |flow: &Flow| {
        let mets = flow.decisions.iter();
        mets.filter(|(_, decision)| matches!(decision, SlotDecision::Met { .. }))
            .count()
    };
    let mut flow = Flow::new(throughput(45.0, 8));
    flow.play(20);
    let before = met(&flow);
    flow.source = 30.0;
    flow.play(2);
    flow.source = 60.0;
    flow.play(20);
    assert_eq!(
        (met(&flow), flow.lacks()),
        (before, Vec::new()),
        "{:?}",
        flow.decisions
    );
    flow.source = 30.0;
    flow.play(20);
    flow.source = 60.0;
    flow.play(20);
    assert_eq!((met(&flow), flow.lacks().len()), (before + 1, 1));
}

/// Aim: that lost slots can't be replaced is told soon where nobody is left to ask, and where somebody is when that has taken long.
#[test]
fn lost_slots_are_told_of() {
    for (room, within) in [(0, 2..5), (1, 9..13)] {
        let mut flow = Flow::new(throughput(75.0, 16));
        flow.play(20);
        assert!(flow.lacks().is_empty());
        let lost_at = flow.now;
        flow.slots -= 4;
        flow.lost = 4;
        flow.room = (room * 100, 0);
        flow.play(20);
        let told = flow
            .decisions
            .iter()
            .find(|(_, decision)| matches!(decision, SlotDecision::Lacks(Lack::Workers(..))));
        let told = told.map(|(at, _)| (*at - lost_at).as_secs());
        assert!(
            told.is_some_and(|told| within.contains(&told)),
            "{told:?} {:?}",
            flow.decisions
        );
    }
}

#[test]
fn a_range_grows_while_slots_are_full_and_shrinks_when_they_are_not() {
    let mut flow = Flow::new(range(2, 20));
    flow.play(30);
    assert_eq!(flow.slots, 20);
    flow.source = 50.0;
    flow.play(40);
    assert!((5..=7).contains(&flow.slots), "{}", flow.slots);
    assert!(flow.lacks().is_empty());
}

/// Aim: a range that is larger than what workers have lacks nothing: nobody asked for a rate.
#[test]
fn a_range_takes_what_there_is() {
    let mut flow = Flow::new(range(2, 4096));
    flow.room = (3, 2);
    flow.play(60);
    assert_eq!(flow.slots, 7);
    assert!(flow.lacks().is_empty(), "{:?}", flow.lacks());
    flow.slots -= 3;
    flow.lost = 3;
    flow.play(60);
    assert!(flow.lacks().is_empty(), "{:?}", flow.lacks());
    flow.slots -= 3;
    (flow.lost, flow.remote) = (6, 0);
    flow.play(60);
    assert_eq!(flow.lacks().len(), 1, "{:?}", flow.lacks());
}

#[test]
fn a_deadline_asks_for_what_is_left_in_the_time_that_is_left() {
    let mut contract = range(1, 64);
    contract.deadline = Some(ItemsDeadline {
        time: Duration::from_secs(60),
        items: 3000,
    });
    let mut flow = Flow::new(contract);
    flow.play(60);
    assert!(flow.done >= 3000.0, "{}", flow.done);
    assert!(flow.slots <= 8, "{}", flow.slots);
}

#[test]
fn trusted_slots_come_first_and_the_others_are_bounded() {
    let mut contract = throughput(200.0, 64);
    contract.remote_max = Some(3);
    let mut flow = Flow::new(contract);
    flow.room = (9, 40);
    flow.play(30);
    assert_eq!((flow.slots, flow.remote), (13, 3));
    let lacks = flow.lacks();
    assert!(
        lacks.len() == 1 && lacks[0].contains("Cost allows 3"),
        "{lacks:?}"
    );
}

#[test]
fn what_is_too_little_is_named() {
    let mut flow = Flow::new(throughput(200.0, 8));
    flow.play(30);
    assert_eq!(flow.slots, 8);
    assert!(flow.lacks()[0].contains("all 8 slots of the contract"));
    let mut flow = Flow::new(throughput(200.0, 64));
    flow.room = (4, 0);
    flow.play(30);
    assert_eq!(flow.slots, 5);
    assert!(flow.lacks()[0].contains("add workers"));
}

#[test]
fn slots_that_have_just_come_are_not_believed() {
    let mut flow = Flow::new(throughput(100.0, 64));
    // The first items load what they need.
    flow.cost = 0.8;
    flow.play(1);
    flow.cost = 0.1;
    flow.play(30);
    assert!((10..=11).contains(&flow.slots), "{}", flow.slots);
}

#[test]
fn nothing_is_decided_without_work_or_for_a_fixed_degree() {
    let mut planner = Planner::new(Contract::fixed(4), PlannerSettings::default());
    assert_eq!(planner.next_look(), None);
    let seen = Observation::default();
    assert_eq!(planner.look(&seen, Duration::from_secs(1)), None);
    let mut flow = Flow::new(throughput(100.0, 64));
    flow.play(20);
    let slots = flow.slots;
    let idle = Observation {
        workload: Workload {
            finished: flow.done as u64,
            slots,
            ..Workload::default()
        },
        ..Observation::default()
    };
    for step in 0..400 {
        let now = flow.now + LOOK * step;
        assert_eq!(flow.planner.look(&idle, now), None);
    }
    assert_eq!(flow.planner.target(), slots, "kept for the next run");
}
