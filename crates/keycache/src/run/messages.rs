//! What processes do with messages, and messages to processes.

use super::{AwaitedMessage, RankState, Run};
use crate::flight::{DELIVERED, RECEIVE_POSTED, SEND_CALLED, TAKEN};
use crate::program::Instruction;
use crate::time::Picoseconds;

/// What a process's next instructions came to.
pub(super) enum NextStep {
    /// It computes.
    Computes,
    /// It waits.
    Waits,
    /// It has nothing more to do.
    Ends,
}

impl Run<'_> {
    /// Goes on with a process until it computes, waits or ends. Calls take no processor time: it is in the traces' gaps.
    pub(super) fn execute(&mut self, process: usize) -> NextStep {
        loop {
            let own = &mut self.processes[process];
            let first_message = self.jobs[usize::from(own.job)].first_message;
            if let Some(awaited) = own.awaited {
                if self.flights[awaited.message as usize].state & DELIVERED == 0 {
                    return NextStep::Waits;
                }
                own.awaited = None;
                if awaited.arrival {
                    self.flights[awaited.message as usize].state |= TAKEN;
                    own.untaken -= 1;
                }
            }
            if own.computing > Picoseconds::ZERO {
                return NextStep::Computes;
            }
            let Some(instruction) = own.instructions.get(own.next).copied() else {
                return NextStep::Ends;
            };
            own.next += 1;
            match instruction {
                Instruction::Compute(nanoseconds) => {
                    let parameters = &self.study.parameters;
                    let gap = u128::from(nanoseconds) * 10 * u128::from(parameters.compute_percent);
                    let jitter = u64::from(parameters.compute_jitter_ppm);
                    let share = 1_000_000 - jitter + own.random.below(2 * jitter + 1);
                    let picoseconds = gap * u128::from(share) / 1_000_000;
                    own.computing =
                        Picoseconds(picoseconds.min(u128::from(Picoseconds::NEVER.0)) as u64);
                }
                Instruction::Send(message) => self.call(first_message + message, SEND_CALLED),
                Instruction::Post(message) => self.call(first_message + message, RECEIVE_POSTED),
                Instruction::AwaitArrival(message) => {
                    self.wait(process, first_message + message, true)
                }
                Instruction::AwaitDeparture(message) => {
                    let message = first_message + message;
                    if !self.is_eager(message) {
                        self.wait(process, message, false);
                    }
                }
            }
        }
    }

    fn wait(&mut self, process: usize, message: u32, arrival: bool) {
        let own = &mut self.processes[process];
        own.awaited = Some(AwaitedMessage { message, arrival });
        own.spin_left = self.rules.spin.unwrap_or_default();
        if self.flights[message as usize].state & DELIVERED == 0 {
            self.waiting += 1;
        }
    }

    fn is_eager(&self, message: u32) -> bool {
        u64::from(self.flights[message as usize].bytes) <= self.study.parameters.eager_bytes
    }

    /// One end of a message is ready for it: it leaves when the sender is, or both are.
    fn call(&mut self, message: u32, end: u8) {
        let eager = self.is_eager(message);
        let now = self.now;
        let flight = &mut self.flights[message as usize];
        flight.state |= end;
        let both = SEND_CALLED | RECEIVE_POSTED;
        let leaves = if eager {
            end == SEND_CALLED
        } else {
            flight.state & both == both
        };
        if !leaves {
            return;
        }
        flight.begun_at = now;
        self.on_the_way += 1;
        // Within a node it is a copy in memory, and those are left out.
        if self
            .ranks_per_card
            .shared(flight.source, flight.destination)
        {
            self.agenda.plan(now, super::Event::Delivered(message));
        } else {
            self.network
                .send(message, now, &mut self.flights, &mut self.agenda);
        }
    }

    /// A message is in its destination's memory.
    pub(super) fn delivered(&mut self, message: u32) {
        let now = self.now;
        let flight = &mut self.flights[message as usize];
        flight.state |= DELIVERED;
        let (job, source, destination) = (flight.job, flight.source, flight.destination);
        self.on_the_way -= 1;
        self.messages += 1;
        self.payload_bytes += u64::from(flight.bytes);
        self.message_latency.record(now - flight.begun_at);
        self.digest.word(now.0);
        self.digest.word(message.into());
        let (receiver, sender) = (self.place(job, destination), self.place(job, source));
        self.processes[receiver].untaken += 1;
        let awaits = |process: usize, arrival| {
            self.processes[process].awaited == Some(AwaitedMessage { message, arrival })
        };
        let ends = [
            awaits(receiver, true).then_some(receiver),
            awaits(sender, false).then_some(sender),
        ];
        let alive = |process: &usize| self.processes[*process].state != RankState::Ended;
        self.waiting -= ends.iter().flatten().filter(|end| alive(end)).count();
        let own = &mut self.jobs[usize::from(job)];
        own.delivered += 1;
        if own.delivered == own.limit {
            self.end_job(job);
        }
        for process in ends.into_iter().flatten() {
            if self.processes[process].state != RankState::Ended {
                self.wake(process);
            }
        }
    }
}
