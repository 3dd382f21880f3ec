//! What is inside, held and queued at the manager keeps within its limits.

use exoskel_flow::{SchedulerConfig, StreamId};

use super::machine::Machine;
use super::streams::User;
use crate::violation::Violation;

impl Machine {
    /// What is inside, held and queued keeps within its limits.
    pub(super) fn check_manager(&self) -> Result<(), Violation> {
        self.check_barred()?;
        self.check_contract()?;
        self.check_budgets()
    }

    fn check_budgets(&self) -> Result<(), Violation> {
        let config = &self.scenario.config;
        let mut input_max = 0;
        let scheduler = self.manager.machine.router().scheduler();
        for (id, number, line) in self.streams.lines() {
            let user = &self.streams.users[number];
            let Some(progress) = scheduler.progress(StreamId(id)) else {
                continue;
            };
            let inside = progress.admitted - progress.taken;
            let limit = if user.scenario.unbounded {
                config.submitted_max
            } else {
                config.tickets_max
            };
            if line == 0 && inside > u64::from(limit) {
                return self
                    .world
                    .broken(format!("{inside} items of stream {number} are inside"));
            }
            let (held, reserved) = scheduler.result_bytes(StreamId(id));
            let most = most_held(config, user, line, inside);
            if held + reserved > most {
                return self.world.broken(format!(
                    "{held} result bytes of line {line} of stream {number} held and {reserved} reserved, expected at most {most} for {inside} items"
                ));
            }
            input_max = input_max.max(user.message_bytes_max() + RECORD_OVERHEAD);
        }
        let frames = config.window_bytes_max + 3 * config.frame_bytes_max + 4 * input_max;
        // Heads of messages and what is of no stream.
        let most = frames + 100 * u64::from(config.window_frames_max) + (64 << 10);
        for held in self.manager.sessions.values() {
            let queued = held.line.session.0.queued_bytes();
            if queued > most {
                return self.world.broken(format!(
                    "{queued} bytes wait to be sealed in {}",
                    held.session
                ));
            }
        }
        Ok(())
    }
}

/// The most bytes of results of a line that so many items of it are the reason of: the budget, what each may have without asking, and the token and the
/// result of the oldest one, which may always move. Where items wait for what they were made into, that holds for each of them: it has the list of the
/// parts' results, or is a part whose result is taken with those of all others.
fn most_held(config: &SchedulerConfig, user: &User, line: u16, inside: u64) -> u64 {
    let largest = match user.program.lines() {
        1 => user.scenario.result_bytes_max + RECORD_OVERHEAD,
        _ => user.message_bytes_max() + RECORD_OVERHEAD,
    };
    let each = config.grant_bytes_min + RECORD_OVERHEAD;
    let always = match user.program.waits_for_parts(line) {
        true => largest * (inside + 2),
        false => 2 * largest,
    };
    config.result_budget_bytes + each * inside + always
}

/// What a record has besides its contents, and what the contents have besides their size.
const RECORD_OVERHEAD: u64 = 64;
