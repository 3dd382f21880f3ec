//! What happens at the slots: they run, answer and die.

use std::time::Duration;

use exoskel_flow::{Action, SlotId};

use super::{Event, Simulation};
use crate::network::Direction;
use crate::process::{Answer, Part, Work};
use crate::report::Violation;

impl Simulation {
    /// The process is gone at once; the manager learns of it when the connection breaks, and what was on the way
    /// arrives or does not.
    pub(super) fn kill(&mut self, slot: SlotId, restart: Option<Duration>) {
        if self.processes.remove(&slot).is_none() {
            return;
        }
        let arrives = self.random.below(2) == 0;
        self.dead.insert(slot, arrives);
        let lost = self.network.send(slot, Direction::ToManager, 0, self.now);
        // Without a word in time, answers can even arrive after the loss is known: they are late and must not count.
        let lost = if self.random.below(2) == 0 {
            self.now + (lost - self.now) / 2
        } else {
            lost
        };
        self.network.forget(slot);
        self.agenda.plan(lost, Event::Lost(slot));
        if let Some(after) = restart {
            self.agenda.plan(self.now + after, Event::Join);
        }
    }

    pub(super) fn at_slot(&mut self, slot: SlotId, action: Action) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&slot) else {
            return Ok(());
        };
        let answers = match action {
            Action::Dispatch { segment, .. } => {
                let segment = &self.program.segments()[usize::from(segment)];
                process.dispatched(action, segment);
                Vec::new()
            }
            Action::Recall { frame, count, .. } => process.recall(frame, count),
            Action::Grant { frame, index, .. } => {
                process.granted(frame, index).into_iter().collect()
            }
            Action::Failed { .. } => Vec::new(),
        };
        self.send_answers(slot, answers);
        self.start(slot)
    }

    fn start(&mut self, slot: SlotId) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&slot) else {
            return Ok(());
        };
        let Some(time) = process.start(&self.scenario) else {
            return Ok(());
        };
        self.report.busy += time;
        let (segment, begun, items) = match &process.running {
            Some(Work::Serial { segment, items }) => (*segment, true, items.clone()),
            Some(Work::Item {
                segment,
                index,
                part,
            }) => (*segment, *part != Part::Rest, vec![*index]),
            None => return Ok(()),
        };
        self.agenda.plan(self.now + time, Event::Done(slot));
        if begun {
            self.check_serial(slot, segment)?;
            for index in &items {
                let times = self.begun.entry((segment, *index)).or_default();
                *times += 1;
                self.report.started += 1;
                self.unanswered
                    .entry(slot)
                    .or_default()
                    .insert((segment, *index));
                self.report.started_twice += u64::from(*times > 1);
            }
        }
        if items
            .iter()
            .any(|index| self.scenario.poison.contains(index))
        {
            self.kill(slot, Some(self.scenario.restart_time));
        }
        Ok(())
    }

    fn check_serial(&self, slot: SlotId, segment: u16) -> Result<(), Violation> {
        if self.program.segments()[usize::from(segment)]
            .serial
            .is_none()
        {
            return Ok(());
        }
        let other = self
            .processes
            .values()
            .filter(|process| process.slot != slot)
            .find(|process| match &process.running {
                Some(Work::Serial {
                    segment: running, ..
                }) => *running == segment,
                Some(Work::Item {
                    segment: running,
                    part,
                    ..
                }) => *part != Part::Rest && *running == segment,
                None => false,
            });
        other.map_or(Ok(()), |other| {
            self.broken(format!(
                "slots {} and {} run serial segment {segment} at once",
                other.slot.0, slot.0
            ))
        })
    }

    pub(super) fn done(&mut self, slot: SlotId) -> Result<(), Violation> {
        let Some(process) = self.processes.get_mut(&slot) else {
            return Ok(());
        };
        let (answers, kept) = process.finish(&self.scenario);
        if kept {
            self.agenda
                .plan(self.now + self.scenario.flush_time, Event::Flush(slot));
        }
        self.send_answers(slot, answers);
        self.start(slot)
    }

    pub(super) fn send_answers(&mut self, slot: SlotId, answers: Vec<Answer>) {
        for answer in answers {
            let at = self
                .network
                .send(slot, Direction::ToManager, answer.bytes(), self.now);
            self.agenda.plan(at, Event::ToManager(slot, answer));
        }
    }
}
