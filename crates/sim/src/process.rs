//! A slot: runs what it has in order, flushes, announces and gives back.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exoskel_flow::{FrameId, Index, Segment, SlotId};

use crate::scenario::Scenario;

/// What a slot says.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Results {
        frame: FrameId,
        first: Index,
        sizes: Vec<u64>,
        busy: Duration,
    },
    Released {
        frame: FrameId,
    },
    Announced {
        frame: FrameId,
        index: Index,
        bytes: u64,
    },
    Recalled {
        frame: FrameId,
        first: Index,
        count: u32,
    },
}

impl Answer {
    /// Bytes on the wire.
    pub(crate) fn bytes(&self) -> u64 {
        40 + match self {
            Self::Results { sizes, .. } => sizes.iter().sum(),
            _ => 0,
        }
    }
}

/// What runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A serial function over all items of a frame that go on to parallel ones.
    Serial { segment: u16, items: Vec<Index> },
    /// The functions of a segment for one item; `first` when no serial part came before.
    Item {
        segment: u16,
        index: Index,
        first: bool,
    },
}

#[derive(Debug)]
struct Job {
    frame: FrameId,
    segment: u16,
    end: Index,
    grant: u64,
    queue: VecDeque<Index>,
    /// A serial function must see the items before the parallel ones do.
    serial_first: bool,
    /// How many functions an item passes after that.
    functions: u32,
    after_serial: bool,
}

/// The state of a slot.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) slot: SlotId,
    slowness: u32,
    jobs: VecDeque<Job>,
    pub(crate) running: Option<Work>,
    run_time: Duration,
    unsent: Vec<(Index, u64)>,
    unsent_busy: Duration,
    large: BTreeMap<(FrameId, Index), u64>,
}

impl Process {
    pub(crate) fn new(slot: SlotId, slowness: u32) -> Self {
        Self {
            slot,
            slowness,
            jobs: VecDeque::new(),
            running: None,
            run_time: Duration::ZERO,
            unsent: Vec::new(),
            unsent_busy: Duration::ZERO,
            large: BTreeMap::new(),
        }
    }

    pub(crate) fn dispatched(
        &mut self,
        frame: FrameId,
        number: u16,
        segment: &Segment,
        first: Index,
        count: u32,
        grant: u64,
    ) {
        let serial_first = segment.serial.is_some() && segment.has_rest();
        let end = first + u64::from(count);
        let functions = segment.functions().count() as u32 - u32::from(serial_first);
        self.jobs.push_back(Job {
            frame,
            segment: number,
            end,
            grant,
            queue: (first..end).collect(),
            serial_first,
            functions,
            after_serial: serial_first,
        });
    }

    /// Starts the next piece of work, if none runs; says how long it takes.
    pub(crate) fn start(&mut self, scenario: &Scenario) -> Option<Duration> {
        if self.running.is_some() {
            return None;
        }
        let job = self.jobs.front_mut()?;
        let time = |index: Index| scenario.service.time(scenario.seed, index) * self.slowness;
        self.run_time = if job.serial_first {
            let items: Vec<Index> = job.queue.iter().copied().collect();
            let total = items.iter().map(|index| time(*index)).sum();
            self.running = Some(Work::Serial {
                segment: job.segment,
                items,
            });
            total
        } else {
            let index = job.queue.pop_front()?;
            self.running = Some(Work::Item {
                segment: job.segment,
                index,
                first: !job.after_serial,
            });
            time(index) * job.functions
        };
        Some(self.run_time)
    }

    /// What ran is finished. Says the answers that leave at once, and whether results are kept for a flush.
    pub(crate) fn finish(&mut self, scenario: &Scenario) -> (Vec<Answer>, bool) {
        let mut answers = Vec::new();
        let (Some(work), Some(job)) = (self.running.take(), self.jobs.front_mut()) else {
            return (answers, false);
        };
        match work {
            Work::Serial { .. } => {
                job.serial_first = false;
                self.unsent_busy += self.run_time;
                answers.push(Answer::Released { frame: job.frame });
            }
            Work::Item { segment, index, .. } => {
                self.unsent_busy += self.run_time;
                let bytes = scenario.bytes(scenario.result_bytes_max, index, segment + 1);
                if bytes > job.grant {
                    self.large.insert((job.frame, index), bytes);
                    answers.push(Answer::Announced {
                        frame: job.frame,
                        index,
                        bytes,
                    });
                } else {
                    self.unsent.push((index, bytes));
                }
            }
        }
        if job.queue.is_empty() {
            answers.extend(self.flush());
            self.jobs.pop_front();
        }
        (answers, self.unsent.len() == 1)
    }

    /// Results that are kept leave now.
    pub(crate) fn flush(&mut self) -> Vec<Answer> {
        let Some(job) = self.jobs.front() else {
            return Vec::new();
        };
        let total = self.unsent.len() as u32;
        let busy = std::mem::take(&mut self.unsent_busy);
        let answers = self
            .unsent
            .chunk_by(|one, next| one.0 + 1 == next.0)
            .map(|run| Answer::Results {
                frame: job.frame,
                first: run[0].0,
                sizes: run.iter().map(|(_, bytes)| *bytes).collect(),
                busy: busy * run.len() as u32 / total,
            });
        let answers = answers.collect();
        self.unsent.clear();
        answers
    }

    /// Gives back items that are not started, from the end of a frame.
    pub(crate) fn recall(&mut self, frame: FrameId, count: u32) -> Answer {
        let Some(job) = self.jobs.iter_mut().find(|job| job.frame == frame) else {
            return Answer::Recalled {
                frame,
                first: 0,
                count: 0,
            };
        };
        let able = if job.after_serial {
            0
        } else {
            job.queue.len().min(count as usize)
        };
        let back = job.queue.split_off(job.queue.len() - able);
        let first = back.front().copied().unwrap_or(job.end);
        let untouched = job.queue.is_empty() && self.running.is_none();
        if untouched
            || (job.queue.is_empty() && self.jobs.front().is_some_and(|front| front.frame != frame))
        {
            self.jobs.retain(|job| job.frame != frame);
        }
        Answer::Recalled {
            frame,
            first,
            count: able as u32,
        }
    }

    /// A result that waited may leave.
    pub(crate) fn granted(&mut self, frame: FrameId, index: Index) -> Option<Answer> {
        let bytes = self.large.remove(&(frame, index))?;
        Some(Answer::Results {
            frame,
            first: index,
            sizes: vec![bytes],
            busy: Duration::ZERO,
        })
    }
}
