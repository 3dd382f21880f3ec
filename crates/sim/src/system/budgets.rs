//! What is inside, held and queued at the manager keeps within its limits.

use exoskel_flow::StreamId;

use super::machine::Machine;
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
        for (id, number) in self.streams.first_lines() {
            let user = &self.streams.users[number];
            let scheduler = self.manager.machine.router().scheduler();
            let Some(progress) = scheduler.progress(StreamId(id)) else {
                continue;
            };
            let inside = progress.admitted - progress.taken;
            let limit = if user.scenario.unbounded {
                config.submitted_max
            } else {
                config.tickets_max
            };
            if inside > u64::from(limit) {
                return self
                    .world
                    .broken(format!("{inside} items of stream {number} are inside"));
            }
            let largest = user.scenario.result_bytes_max + RECORD_OVERHEAD;
            let (held, reserved) = scheduler.result_bytes(StreamId(id));
            let least = (config.grant_bytes_min + RECORD_OVERHEAD) * inside + 2 * largest;
            // Of lines side by side each has the least that it needs.
            let has_one_line = user.program.lines() == 1;
            if has_one_line && held + reserved > config.result_budget_bytes + least {
                return self.world.broken(format!(
                    "{held} result bytes of stream {number} held and {reserved} reserved"
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

/// What a record has besides its contents, and what the contents have besides their size.
const RECORD_OVERHEAD: u64 = 64;
