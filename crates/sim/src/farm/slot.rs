//! A slot of a large farm: runs its frames one after another, and gives back what it has not begun.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_flow::{FrameId, Index, Lease};

use exoskel_determinism::SplitMix64;

use super::{Event, FarmRun, STRAGGLER_TIMES};

/// Results leave when so much time was spent on them, or when their frame is done.
const RESULTS_TIME: Duration = Duration::from_millis(1);

/// A frame, or what is left of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FarmFrame {
    pub(super) id: FrameId,
    pub(super) from: u16,
    pub(super) to: u16,
    pub(super) lease: Lease,
    pub(super) first: Index,
    pub(super) count: u32,
}

/// What a slot does now. Places are counted from the frame's first item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FarmPart {
    /// All items pass the serial function, which another slot has then ([`Lease::PassedOn`]).
    Passing,
    /// This item is in the serial function, and goes on behind it ([`Lease::Kept`]).
    Serial(u32),
    /// Items up to this one run through what they have before them.
    Items(u32),
}

#[derive(Clone, Copy, Debug)]
struct FarmRunning {
    frame: FarmFrame,
    part: FarmPart,
    /// Items before this one have been answered for.
    answered: u32,
    /// Items before this one are done.
    done: u32,
    /// Time spent that no answer has said yet.
    busy: Duration,
    /// The serial function goes back as soon as the running item has passed it.
    is_awaited: bool,
    /// So many items that have passed the serial function are asked back.
    asked: u32,
}

#[derive(Debug, Default)]
pub(super) struct FarmSlot {
    pub(super) queue: VecDeque<FarmFrame>,
    running: Option<FarmRunning>,
    /// Counts the parts that it has begun.
    turn: u64,
    /// When it has done what it does now.
    until: Duration,
}

impl FarmRun<'_> {
    /// What an item of a frame takes in these segments.
    fn time(
        &mut self,
        slot: u32,
        index: Index,
        segments: std::ops::RangeInclusive<u16>,
    ) -> Duration {
        let times = self.times(slot, index);
        let mut sum = Duration::ZERO;
        for number in segments {
            let segment = &self.program.segments()[usize::from(number)];
            for function in &segment.functions {
                let time = self.farm.time(index, *function, segment.serial);
                if segment.serial {
                    self.serial_work[usize::from(number)] += time;
                }
                sum += time * times;
            }
        }
        sum
    }

    /// How many times as long as usual an item takes at this slot.
    fn times(&mut self, slot: u32, index: Index) -> u32 {
        let one_in = self.farm.straggler_one_in;
        if one_in == 0 || SplitMix64::new(self.farm.seed ^ index).below(one_in) > 0 {
            return 1;
        }
        let first = *self.stragglers.entry(index).or_insert(slot);
        if first == slot { STRAGGLER_TIMES } else { 1 }
    }

    /// A slot takes its next frame, if it has nothing else to do.
    pub(super) fn start(&mut self, slot: u32) {
        let process = &mut self.processes[slot as usize];
        if process.running.is_some() {
            return;
        }
        let Some(frame) = process.queue.pop_front() else {
            return;
        };
        let part = match frame.lease {
            Lease::PassedOn => FarmPart::Passing,
            Lease::Kept if frame.to > frame.from => FarmPart::Serial(0),
            Lease::Kept | Lease::None => FarmPart::Items(0),
        };
        let running = FarmRunning {
            frame,
            part,
            answered: 0,
            done: 0,
            busy: Duration::ZERO,
            is_awaited: false,
            asked: 0,
        };
        self.enter(slot, running);
    }

    /// A slot begins a part of its frame.
    fn enter(&mut self, slot: u32, mut running: FarmRunning) {
        let FarmFrame {
            first,
            count,
            lease,
            from,
            to,
            ..
        } = running.frame;
        let time = match running.part {
            FarmPart::Passing => {
                let items = first..first + u64::from(count);
                items.map(|index| self.time(slot, index, from..=from)).sum()
            }
            FarmPart::Serial(place) => self.time(slot, first + u64::from(place), from..=from),
            FarmPart::Items(_) => {
                let segments = match lease {
                    Lease::Kept if to == from => from..=to,
                    Lease::Kept | Lease::PassedOn => from + 1..=to,
                    Lease::None => from..=to,
                };
                // Short items are one event together, as they are one answer.
                let is_one = lease == Lease::Kept && to > from;
                let (mut place, mut time) = (running.done, Duration::ZERO);
                loop {
                    time += self.time(slot, first + u64::from(place), segments.clone());
                    place += 1;
                    if is_one || place >= count || time >= RESULTS_TIME {
                        break;
                    }
                }
                running.part = FarmPart::Items(place);
                time
            }
        };
        running.busy += time;
        self.report.work += time;
        let process = &mut self.processes[slot as usize];
        process.running = Some(running);
        process.turn += 1;
        process.until = self.now + time;
        let done = Event::Done(slot, process.turn);
        self.agenda.plan(process.until, done);
    }

    /// A slot has done a part of its frame, unless that was ended before.
    pub(super) fn done(&mut self, slot: u32, turn: u64) {
        if self.processes[slot as usize].turn == turn {
            self.go_on(slot);
        }
    }

    /// A slot ends an item that nobody needs any more.
    pub(super) fn interrupt(&mut self, slot: u32, id: FrameId, index: Index) {
        let process = &mut self.processes[slot as usize];
        let Some(running) = &mut process.running else {
            return;
        };
        let FarmPart::Items(end) = running.part else {
            return;
        };
        let is_it = running.frame.id == id && running.frame.first + u64::from(end) == index + 1;
        if is_it && self.now < process.until {
            let left = process.until - self.now;
            running.busy = running.busy.saturating_sub(left);
            self.report.work -= left;
            process.turn += 1;
            self.go_on(slot);
        }
    }

    /// A slot has done a part of its frame, or all of it.
    fn go_on(&mut self, slot: u32) {
        let Some(mut running) = self.processes[slot as usize].running.take() else {
            return;
        };
        let at = self.now + self.farm.latency_to(slot);
        let id = running.frame.id;
        let next = match running.part {
            FarmPart::Passing => {
                let busy = std::mem::take(&mut running.busy);
                self.agenda.plan(at, Event::Released(slot, id, busy));
                FarmPart::Items(0)
            }
            FarmPart::Serial(place) => {
                if std::mem::take(&mut running.is_awaited) {
                    let event = Event::Released(slot, id, Duration::ZERO);
                    self.agenda.plan(at, event);
                }
                FarmPart::Items(place)
            }
            FarmPart::Items(end) => {
                running.done = end;
                self.give_back_halfway(slot, &mut running);
                if end >= running.frame.count || running.busy >= RESULTS_TIME {
                    self.answer(slot, &mut running);
                }
                if end >= running.frame.count {
                    return self.start(slot);
                }
                match running.frame.lease {
                    Lease::Kept if running.frame.to > running.frame.from => FarmPart::Serial(end),
                    _ => FarmPart::Items(end),
                }
            }
        };
        self.enter(
            slot,
            FarmRunning {
                part: next,
                ..running
            },
        );
    }

    /// What is done and not answered for goes home.
    fn answer(&mut self, slot: u32, running: &mut FarmRunning) {
        let done = FarmFrame {
            first: running.frame.first + u64::from(running.answered),
            count: running.done - running.answered,
            ..running.frame
        };
        running.answered = running.done;
        let busy = std::mem::take(&mut running.busy);
        let at = self.now + self.farm.latency_to(slot);
        let event = Event::Results(slot, done, running.frame.to + 1, busy);
        self.agenda.plan(at, event);
    }

    /// What has passed the serial function and is asked back goes home as it is.
    fn give_back_halfway(&mut self, slot: u32, running: &mut FarmRunning) {
        let asked = std::mem::take(&mut running.asked);
        if asked == 0 {
            return;
        }
        let at = self.now + self.farm.latency_to(slot);
        let frame = &mut running.frame;
        let count = asked.min(frame.count - running.done);
        frame.count -= count;
        let given = FarmFrame {
            first: frame.first + u64::from(frame.count),
            count,
            ..*frame
        };
        if count > 0 {
            self.report.recalled += u64::from(count);
            let event = Event::Results(slot, given, frame.from + 1, Duration::ZERO);
            self.agenda.plan(at, event);
        }
        let answer = FarmFrame { count: 0, ..given };
        self.agenda.plan(at, Event::Recalled(slot, answer));
    }

    /// A slot gives back what it has not begun. When nothing is left for the serial function, that goes back too.
    pub(super) fn give_back(&mut self, slot: u32, id: FrameId, count: u32) {
        let FarmSlot { queue, running, .. } = &mut self.processes[slot as usize];
        let at = self.now + self.farm.latency_to(slot);
        let mut given = FarmFrame {
            id,
            from: 0,
            to: 0,
            lease: Lease::None,
            first: 0,
            count: 0,
        };
        let mut take = |frame: &mut FarmFrame, begun: u32| {
            given.count = count.min(frame.count - begun);
            frame.count -= given.count;
            given.first = frame.first + u64::from(frame.count);
        };
        if let Some(position) = queue.iter().position(|frame| frame.id == id) {
            let frame = &mut queue[position];
            take(frame, 0);
            if frame.count == 0 {
                queue.remove(position);
            }
        } else if let Some(running) = running.as_mut().filter(|running| running.frame.id == id) {
            let goes_on = running.frame.to > running.frame.from;
            match (running.part, running.frame.lease) {
                (FarmPart::Serial(place), _) => {
                    take(&mut running.frame, place + 1);
                    running.is_awaited = running.frame.count == place + 1;
                }
                (FarmPart::Items(end), Lease::Kept) if goes_on => {
                    take(&mut running.frame, end);
                    if running.frame.count == end {
                        let event = Event::Released(slot, id, Duration::ZERO);
                        self.agenda.plan(at, event);
                    }
                }
                (FarmPart::Items(end), Lease::PassedOn) if end < running.frame.count => {
                    running.asked = running.asked.max(count);
                    return;
                }
                (FarmPart::Items(end), _) => take(&mut running.frame, end),
                (FarmPart::Passing, _) => {}
            }
        }
        self.agenda.plan(at, Event::Recalled(slot, given));
    }
}
