//! What is seen of the work at one moment, for whoever decides how many slots there should be.

use std::time::Duration;

use crate::scheduler::Scheduler;

/// Sums since the start, and the state now, over all slots and streams.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Workload {
    /// Items that have entered.
    pub admitted: u64,
    /// Items that have their outcome.
    pub finished: u64,
    /// Time spent in functions, as answers say.
    pub busy: Duration,
    /// Time for which slots had items, up to their last answers.
    pub occupied: Duration,
    /// Time since the last answers of those slots that have items.
    pub underway: Duration,
    /// The time since the last answer of that one of them that has answered last.
    pub latest: Duration,
    /// How many slots have items.
    pub running: u32,
    /// Slots that may get work.
    pub slots: u32,
    /// Items at no slot.
    pub ready: u64,
    /// Those of them that wait for a serial function.
    pub ready_for_serial: u64,
    /// Items at slots.
    pub out: u64,
    /// Some stream takes more items from its user.
    pub takes_input: bool,
    /// Some stream takes no items now because its user does not take its outcomes.
    pub waits_for_reader: bool,
    /// The longest time of an item in one serial function, as far as it is known.
    pub serial: Duration,
}

impl Workload {
    /// Whether there is anything to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.ready + self.out > 0
    }
}

/// What slots and streams that are gone have done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Gone {
    pub(crate) busy: Duration,
    pub(crate) occupied: Duration,
    pub(crate) admitted: u64,
    pub(crate) finished: u64,
}

impl Scheduler {
    /// What is seen of the work now. It looks at all slots: not for each item.
    #[must_use]
    pub fn workload(&self, now: Duration) -> Workload {
        let gone = &self.gone;
        let mut seen = Workload {
            admitted: gone.admitted,
            finished: gone.finished,
            busy: gone.busy,
            occupied: gone.occupied,
            ..Workload::default()
        };
        for (_, slot) in self.slots.iter() {
            seen.busy += slot.statistics.busy;
            seen.occupied += slot.statistics.occupied;
            seen.slots += u32::from(slot.is_usable());
            if slot.running_items > 0 {
                let silence = Duration::from_nanos(slot.silence(now));
                seen.latest = match seen.running {
                    0 => silence,
                    _ => silence.min(seen.latest),
                };
                seen.running += 1;
                seen.underway += silence;
            }
        }
        for stream in self.streams.iter().filter(|stream| !stream.closed) {
            let progress = stream.progress();
            seen.admitted += progress.admitted;
            seen.finished += progress.finished;
            seen.ready += progress.ready;
            seen.out += progress.out;
            seen.takes_input |= !progress.input_ended;
            // Most of what is inside waits for the user, so there are no tickets left for what slots could do.
            let untaken = progress.finished - progress.taken.min(progress.finished);
            seen.waits_for_reader |= !progress.input_ended
                && untaken > progress.ready + progress.out
                && self.tickets(stream.id) == 0;
            for segment in &stream.segments {
                if segment.serial {
                    seen.ready_for_serial += segment.ready.len();
                    // With what comes behind it in the same frame the time says nothing of the function.
                    let by_itself = segment.time.settled().filter(|_| !segment.rest);
                    let time = segment.serial_time.settled().or(by_itself);
                    let time = Duration::from_nanos(time.unwrap_or(0));
                    seen.serial = seen.serial.max(time);
                }
            }
        }
        seen
    }

    /// A stream is dropped.
    pub(crate) fn forget_progress(&mut self, place: usize) {
        let progress = self.streams[place].progress();
        self.gone.admitted += progress.admitted;
        self.gone.finished += progress.finished;
    }
}
