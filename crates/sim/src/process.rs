//! A slot: runs what it has in order, flushes, announces and gives back.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use exoskel_flow::{Action, FrameId, Index, Lease, Segment, SlotId};

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
        busy: Duration,
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
    /// The functions of a segment for one item.
    Item {
        segment: u16,
        index: Index,
        part: Part,
    },
}

/// Which of its functions an item passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    All,
    Serial,
    Rest,
}

#[derive(Debug)]
struct Job {
    frame: FrameId,
    segment: u16,
    end: Index,
    grant: u64,
    queue: VecDeque<Index>,
    lease: Lease,
    /// All functions of the segment.
    functions: u32,
    /// Functions go on after a serial one.
    goes_on: bool,
    /// With [`Lease::PassedOn`]: all items have passed the serial function.
    passed: bool,
    /// With [`Lease::Kept`]: this item has, and goes on.
    beyond: Option<Index>,
    /// Nothing else of the frame will come to the serial function, and somebody waits for the running item.
    awaited: bool,
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

    /// A frame has come, of this segment.
    pub(crate) fn dispatched(&mut self, dispatch: Action, segment: &Segment) {
        let Action::Dispatch {
            frame,
            segment: number,
            first,
            count,
            grant,
            lease,
            ..
        } = dispatch
        else {
            return;
        };
        let end = first + u64::from(count);
        self.jobs.push_back(Job {
            frame,
            segment: number,
            end,
            grant,
            queue: (first..end).collect(),
            lease,
            functions: segment.functions().count() as u32,
            goes_on: segment.serial.is_some() && segment.has_rest(),
            passed: false,
            beyond: None,
            awaited: false,
        });
    }

    /// Starts the next piece of work, if none runs; says how long it takes.
    pub(crate) fn start(&mut self, scenario: &Scenario) -> Option<Duration> {
        if self.running.is_some() {
            return None;
        }
        let job = self.jobs.front_mut()?;
        let time = |index: Index| scenario.service.time(scenario.seed, index) * self.slowness;
        self.run_time = if job.lease == Lease::PassedOn && !job.passed {
            let items: Vec<Index> = job.queue.iter().copied().collect();
            let total = items.iter().map(|index| time(*index)).sum();
            self.running = Some(Work::Serial {
                segment: job.segment,
                items,
            });
            total
        } else {
            let (index, part) = match job.beyond.take() {
                Some(index) => (index, Part::Rest),
                None => (
                    job.queue.pop_front()?,
                    match (job.goes_on, job.lease) {
                        (true, Lease::PassedOn) => Part::Rest,
                        (true, Lease::Kept) => Part::Serial,
                        _ => Part::All,
                    },
                ),
            };
            self.running = Some(Work::Item {
                segment: job.segment,
                index,
                part,
            });
            time(index)
                * match part {
                    Part::All => job.functions,
                    Part::Serial => 1,
                    Part::Rest => job.functions - 1,
                }
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
                job.passed = true;
                answers.push(Answer::Released {
                    frame: job.frame,
                    busy: self.run_time,
                });
            }
            Work::Item {
                index,
                part: Part::Serial,
                ..
            } => {
                self.unsent_busy += self.run_time;
                job.beyond = Some(index);
                if std::mem::take(&mut job.awaited) {
                    answers.push(released(job.frame));
                }
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
        if job.queue.is_empty() && job.beyond.is_none() {
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

    /// Gives back items that are not started, from the end of a frame; and its lease, when only the running item has
    /// had it and has passed the serial function.
    pub(crate) fn recall(&mut self, frame: FrameId, count: u32) -> Vec<Answer> {
        let none = Answer::Recalled {
            frame,
            first: 0,
            count: 0,
        };
        let Some(position) = self.jobs.iter().position(|job| job.frame == frame) else {
            return vec![none];
        };
        let job = &mut self.jobs[position];
        if job.lease == Lease::PassedOn && (job.passed || position == 0 && self.running.is_some()) {
            return vec![none];
        }
        let able = job.queue.len().min(count as usize);
        let back = job.queue.split_off(job.queue.len() - able);
        let mut answers = vec![Answer::Recalled {
            frame,
            first: back.front().copied().unwrap_or(job.end),
            count: able as u32,
        }];
        if !job.queue.is_empty() {
            return answers;
        }
        if position > 0 || self.running.is_none() {
            self.jobs.remove(position);
        } else if job.goes_on && job.lease == Lease::Kept {
            job.awaited = matches!(
                self.running,
                Some(Work::Item {
                    part: Part::Serial,
                    ..
                })
            );
            if !job.awaited {
                answers.push(released(frame));
            }
        }
        answers
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

/// The lease comes back before its frame is finished.
fn released(frame: FrameId) -> Answer {
    Answer::Released {
        frame,
        busy: Duration::ZERO,
    }
}
