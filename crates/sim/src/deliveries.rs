//! Runs with a journal that are crashed at each of their writes, on disks that tear and lose what was not synced.
//!
//! The journal and the delivery are those of real runs. The sink is a file on a faulty disk, the results come in an order that the seed
//! draws. After each crash the run goes on from what the disks still have, until it ends: then the sink must hold each result once.

mod faulty_disk;
mod sink;

use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_journal::{Delivery, EarlyResult, ItemOutcome, Journal, JournalError, RunTexts};

use self::faulty_disk::{Disk, Power};
use self::sink::FileSink;

/// What is broken on purpose, to show that the checks see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenDelivery {
    /// The sink says where it is without having been synced, so that the journal is committed first.
    CommitBeforeSync,
    /// A result counts as written before it is: the last one of a group comes with the next group.
    WatermarkTooEarly,
    /// Who goes on doesn't cut the sink back.
    NotCutBack,
}

/// What many crashes came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// Machines or processes that ended in the middle.
    pub crashes: u64,
    /// Of these, the ones after which the journal was begun anew, since it had not been begun before.
    pub begun_anew: u64,
    /// Early results that a later run found in the journal.
    pub early_found: u64,
    /// Writes of the runs that nothing disturbed.
    pub steps: u64,
}

/// A run to be crashed.
#[derive(Debug, Clone)]
struct CrashedRun {
    seed: u64,
    items: u64,
    /// How far results come before their turn.
    spread: u64,
    broken: Option<BrokenDelivery>,
}

/// How a life of a run ended.
enum End {
    Finished,
    Crashed,
}

/// Crashes the run of a seed once at each of its writes, and sometimes again while it goes on.
///
/// # Errors
/// What was lost, doubled or altered, and where the crash was.
pub fn crash_everywhere(seed: u64, broken: Option<BrokenDelivery>) -> Result<CrashReport, String> {
    let mut random = SplitMix64::new(seed);
    let run = CrashedRun {
        seed,
        items: 1 + random.below(40),
        spread: random.below(12),
        broken,
    };
    let mut report = CrashReport::default();
    let undisturbed = Power::on(u64::MAX);
    let (journal, sink) = (Disk::new(&undisturbed), Disk::new(&undisturbed));
    run.live(&journal, &sink, &mut report)
        .map_err(|what| format!("seed {seed}, undisturbed: {what}"))?;
    report.steps = undisturbed.steps();
    for step in 0..report.steps {
        run.crash_at(step, &mut report)
            .map_err(|what| format!("seed {seed}, crash at step {step}: {what}"))?;
    }
    Ok(report)
}

impl CrashedRun {
    /// Lives until a step, and goes on until the end.
    fn crash_at(&self, step: u64, report: &mut CrashReport) -> Result<(), String> {
        let mut random = SplitMix64::new(self.seed ^ step << 20);
        let mut power = Power::on(step);
        let (mut journal, mut sink) = (Disk::new(&power), Disk::new(&power));
        while let End::Crashed = self.live(&journal, &sink, report)? {
            report.crashes += 1;
            let again = match random.below(3) {
                0 => random.below(60),
                _ => u64::MAX,
            };
            power = Power::on(again);
            // A killed process loses nothing of what the kernel has; a machine without power loses what was not synced.
            let is_killed = random.below(4) == 0;
            journal = journal.after_crash(is_killed, &mut random, &power);
            sink = sink.after_crash(is_killed, &mut random, &power);
        }
        Ok(())
    }

    /// One life of the run, from what the disks have until its end or the crash.
    fn live(
        &self,
        journal_disk: &Disk,
        sink_disk: &Disk,
        report: &mut CrashReport,
    ) -> Result<End, String> {
        match self.try_live(journal_disk, sink_disk, report) {
            Ok(()) => {
                self.check(&sink_disk.contents(), self.items)?;
                Ok(End::Finished)
            }
            Err(JournalError::Disk(_)) if journal_disk.power().is_off() => Ok(End::Crashed),
            // The store says so of everything that follows a write that failed.
            Err(JournalError::Damaged { .. }) if journal_disk.power().is_off() => Ok(End::Crashed),
            Err(error) => Err(error.to_string()),
        }
    }

    fn try_live(
        &self,
        journal_disk: &Disk,
        sink_disk: &Disk,
        report: &mut CrashReport,
    ) -> Result<(), JournalError> {
        let texts = RunTexts {
            program: "twice".to_owned(),
            source: format!("{} items", self.items),
            sink: "a file".to_owned(),
        };
        let mut is_new = false;
        let begin = || {
            is_new = true;
            0_u64.to_le_bytes().to_vec()
        };
        let (journal, state) = Journal::open(journal_disk.clone(), &texts, begin)?;
        report.begun_anew += u64::from(is_new && journal_disk.has_crashed());
        let mut sink = FileSink::new(sink_disk.clone(), self.broken);
        sink.cut_back(&state.position)?;
        if !matches!(self.broken, Some(BrokenDelivery::NotCutBack)) {
            self.check(&sink_disk.contents(), state.watermark)
                .map_err(|what| JournalError::Disk(std::io::Error::other(what)))?;
        }
        if state.is_finished {
            return Ok(());
        }
        let mut delivery = Delivery::new(journal, state, true)?;
        report.early_found += delivery.early();
        delivery.follow_up(&mut sink)?;
        self.deliver(&mut delivery, &mut sink)
    }

    /// Hands over the outcomes of all items that have none, in an order of their own.
    fn deliver(&self, delivery: &mut Delivery, sink: &mut FileSink) -> Result<(), JournalError> {
        let numbers = delivery.numbers().clone();
        let mut indexes = (0..)
            .map(|nth| numbers.index_of(nth))
            .take_while(|index| *index < self.items)
            .collect::<Vec<_>>();
        let mut random = SplitMix64::new(self.seed ^ delivery.next() << 8 ^ delivery.early());
        indexes.sort_by_cached_key(|index| index + random.below(self.spread + 1));
        let mut now = Duration::ZERO;
        for index in indexes {
            now += Duration::from_millis(random.below(30));
            let turn = match self.result(index) {
                None => ItemOutcome::Skipped,
                Some(result) if index == delivery.next() => ItemOutcome::Now(result),
                Some(record) => ItemOutcome::Early(EarlyResult {
                    is_skipped: false,
                    is_restricted: is_restricted(index),
                    record,
                }),
            };
            if delivery.take(sink, index, turn, now)? {
                delivery.commit(sink)?;
            }
        }
        delivery.finish(sink)
    }

    /// What the function makes of an item: always the same.
    fn result(&self, index: u64) -> Option<Vec<u8>> {
        let mut random = SplitMix64::new(self.seed.wrapping_mul(31) ^ index);
        let bytes = match random.below(16) {
            0 => return None,
            1 => 30_000 + random.below(60_000),
            2 => 0,
            _ => random.below(300),
        };
        let mut result = index.to_le_bytes().to_vec();
        result.extend((0..bytes).map(|_| random.next_u64() as u8));
        Some(result)
    }

    /// The sink holds the results of the first items, each once and unaltered.
    fn check(&self, contents: &[u8], items: u64) -> Result<(), String> {
        let mut rest = contents;
        for index in 0..items {
            let Some(expected) = self.result(index) else {
                continue;
            };
            let framed = sink::framed(&expected);
            rest = rest.strip_prefix(&*framed).ok_or_else(|| {
                let at = contents.len() - rest.len();
                format!(
                    "the result of item {index} is not in the sink at byte {at}, where it belongs"
                )
            })?;
        }
        match rest.len() {
            0 => Ok(()),
            more => Err(format!(
                "{more} bytes are in the sink behind the last result"
            )),
        }
    }
}

/// Each third result is of somebody who isn't trusted.
fn is_restricted(index: u64) -> bool {
    index.is_multiple_of(3)
}
