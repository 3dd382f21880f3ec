//! Runs with a journal that are crashed at each of their writes, on disks that tear and lose what was not synced.
//!
//! The journal and the delivery are those of real runs. The sink is a file on a faulty disk, the results come in an order that the seed
//! draws: one for each item, any number of them, or one of all items together, which are folded. After each crash the run goes on from what the disks still have, until it ends: then the sink must hold each result once.

mod fold;
pub(crate) mod sink;

use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_journal::{
    Delivery, EarlyResult, GROUP_TIME, ItemOutcome, Journal, JournalError, RunState, RunTexts,
    StorageBackend,
};

use self::fold::FoldSink;
use self::sink::FileSink;
use crate::faulty_disk::{Disk, Power};

/// What is broken on purpose, to show that the checks see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokenDelivery {
    /// The sink says where it is without having been synced, so that the journal is committed first.
    CommitBeforeSync,
    /// A result counts as written before it is: the last one of a group comes with the next group.
    WatermarkTooEarly,
    /// Who goes on doesn't cut the sink back.
    NotCutBack,
    /// An item with several results counts as whole before its last one.
    ItemTooEarly,
    /// A fold says without its last value what it has folded.
    FoldTooLate,
    /// A head with a zero in it counts as one that was never written, whatever lies behind.
    TornIsUnbegun,
}

/// What becomes of the items of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultForm {
    /// One result each, some before their turn.
    One,
    /// Any number, in order.
    Many,
    /// One result of all.
    Folded,
}

impl ResultForm {
    /// Each of them.
    pub const ALL: [Self; 3] = [Self::One, Self::Many, Self::Folded];
}

/// What many crashes came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CrashReport {
    /// Machines or processes that ended in the middle.
    pub crashes: u64,
    /// Of these, the ones after which the journal was begun anew, since it had not been begun before.
    pub begun_anew: u64,
    /// Of these, the ones after which the journal was told to be damaged, since the machine ended while it was begun.
    pub told_unbegun: u64,
    /// Heads that were damaged on purpose, and told.
    pub told_heads: u64,
    /// Early results that a later run found in the journal.
    pub early_found: u64,
    /// Of these, the ones after which a run went on amid its items, each with any number of results.
    pub many_continued: u64,
    /// Of these, the ones after which a fold went on.
    pub folds_continued: u64,
    /// Writes of the runs that nothing disturbed.
    pub steps: u64,
}

/// The page that a journal's head is.
const PAGE_BYTES: usize = 4096;

/// What stands in it before the zeros, without the last bytes of the format, which are zeros too.
const HEAD_TEXT_BYTES: u64 = 22;

/// A run to be crashed.
#[derive(Debug, Clone)]
struct CrashedRun {
    seed: u64,
    form: ResultForm,
    items: u64,
    /// How far results come before their turn.
    spread: u64,
    broken: Option<BrokenDelivery>,
}

/// How a life of a run ended.
enum End {
    Finished,
    Crashed,
    /// The journal is damaged, and nothing was changed.
    Damaged,
}

/// Crashes the run of a seed once at each of its writes, and sometimes again while it goes on.
///
/// # Errors
/// What was lost, doubled or altered, and where the crash was.
pub fn crash_everywhere(
    seed: u64,
    form: ResultForm,
    broken: Option<BrokenDelivery>,
) -> Result<CrashReport, String> {
    let mut random = SplitMix64::new(seed);
    let run = CrashedRun {
        seed,
        form,
        items: 1 + random.below(40),
        spread: random.below(12),
        broken,
    };
    let mut report = CrashReport::default();
    let undisturbed = Power::on(u64::MAX);
    let (journal, sink) = (Disk::new(&undisturbed), Disk::new(&undisturbed));
    run.live(&journal, &sink, &mut report)
        .map_err(|what| format!("seed {seed}, {form:?}, undisturbed: {what}"))?;
    report.steps = undisturbed.steps();
    for step in 0..report.steps {
        run.crash_at(step, &mut report)
            .map_err(|what| format!("seed {seed}, {form:?}, crash at step {step}: {what}"))?;
    }
    Ok(report)
}

impl CrashedRun {
    /// Lives until a step, and goes on until the end.
    fn crash_at(&self, step: u64, report: &mut CrashReport) -> Result<(), String> {
        let mut random = SplitMix64::new(self.seed ^ step << 20);
        let mut power = Power::on(step);
        let (mut journal, mut sink) = (Disk::new(&power), Disk::new(&power));
        let mut is_begun = false;
        loop {
            let before = (journal.contents(), sink.contents());
            match self.live(&journal, &sink, report)? {
                End::Finished => return Ok(()),
                End::Crashed => report.crashes += 1,
                End::Damaged if is_begun || !before.1.is_empty() => {
                    return Err("a journal that was begun is told to be damaged".to_owned());
                }
                End::Damaged => {
                    // Whoever reads that removes it.
                    report.told_unbegun += 1;
                    if before != (journal.contents(), sink.contents()) {
                        return Err("a damaged journal or its sink was changed".to_owned());
                    }
                    journal = Disk::holding(Vec::new(), &power);
                    continue;
                }
            }
            is_begun = journal.is_begun() || is_begun;
            let again = match random.below(3) {
                0 => random.below(60),
                _ => u64::MAX,
            };
            power = Power::on(again);
            // A killed process loses nothing of what the kernel has; a machine without power loses what was not synced.
            let is_killed = random.below(4) == 0;
            journal = journal.after_crash(is_killed, &mut random, &power);
            sink = sink.after_crash(is_killed, &mut random, &power);
            self.damage_head(&journal, &sink, &mut random, report)?;
        }
    }

    /// Goes on from copies of the disks, of which the journal's has a damaged head: the results are right, or the damage is told and nothing
    /// is changed.
    fn damage_head(
        &self,
        journal: &Disk,
        sink: &Disk,
        random: &mut SplitMix64,
        report: &mut CrashReport,
    ) -> Result<(), String> {
        let (mut contents, results) = (journal.contents(), sink.contents());
        if contents.len() < PAGE_BYTES {
            return Ok(());
        }
        match random.below(4) {
            0 => contents[..PAGE_BYTES].fill(0),
            1 => contents.clear(),
            _ => contents[random.below(HEAD_TEXT_BYTES) as usize] = 0,
        }
        let power = Power::on(u64::MAX);
        let journal = Disk::holding(contents.clone(), &power);
        let sink = Disk::holding(results.clone(), &power);
        let mut unseen = CrashReport::default();
        let ended = self.live(&journal, &sink, &mut unseen);
        match ended.map_err(|what| format!("with a damaged head: {what}"))? {
            End::Damaged if (journal.contents(), sink.contents()) != (contents, results) => {
                Err("a journal with a damaged head, or its sink, was changed".to_owned())
            }
            End::Damaged => {
                report.told_heads += 1;
                Ok(())
            }
            _ => Ok(()),
        }
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
                self.check(&sink_disk.contents(), self.items, true)?;
                Ok(End::Finished)
            }
            Err(JournalError::Disk(_)) if journal_disk.power().is_off() => Ok(End::Crashed),
            // The store says so of everything that follows a write that failed.
            Err(JournalError::Damaged { .. }) if journal_disk.power().is_off() => Ok(End::Crashed),
            Err(JournalError::Damaged { .. }) => Ok(End::Damaged),
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
        let is_broken = self.broken == Some(BrokenDelivery::TornIsUnbegun);
        if is_broken
            && journal_disk
                .contents()
                .iter()
                .take(HEAD_TEXT_BYTES as usize)
                .any(|byte| *byte == 0)
        {
            journal_disk.set_len(0).map_err(JournalError::Disk)?;
        }
        let is_empty = journal_disk.contents().is_empty();
        let begin = || -> Result<Vec<u8>, JournalError> {
            is_new = true;
            let place = sink_disk.contents().len() as u64;
            // As runs refuse it: nobody knows which results these are.
            match is_empty && place > 0 && !is_broken {
                true => Err(JournalError::Damaged {
                    offset: 0,
                    reason: "it is empty, and the sink is not".to_owned(),
                }),
                false => Ok(place.to_le_bytes().to_vec()),
            }
        };
        let (journal, state) = Journal::open(journal_disk.clone(), &texts, begin)?;
        journal_disk.begun();
        report.begun_anew += u64::from(is_new && journal_disk.has_crashed());
        let mut sink = FileSink::new(sink_disk.clone(), self.broken);
        let (place, _) = state.position.split_at_checked(8).unwrap_or_default();
        sink.cut_back(place)?;
        if self.form == ResultForm::Folded {
            return self.fold(journal, state, sink, report);
        }
        if !matches!(self.broken, Some(BrokenDelivery::NotCutBack)) {
            self.check(&sink_disk.contents(), state.watermark, state.is_finished)
                .map_err(|what| JournalError::Disk(std::io::Error::other(what)))?;
        }
        if state.is_finished {
            return Ok(());
        }
        let mut delivery = Delivery::new(journal, state, true)?;
        report.early_found += delivery.early();
        delivery.follow_up(&mut sink)?;
        match self.form {
            ResultForm::Many => {
                report.many_continued += u64::from(delivery.next() > 0);
                self.deliver_many(&mut delivery, &mut sink)
            }
            _ => self.deliver(&mut delivery, &mut sink),
        }
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
            let turn = match self.result(index << 8) {
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

    /// Hands over all outcomes of each item, in order.
    fn deliver_many(
        &self,
        delivery: &mut Delivery,
        sink: &mut FileSink,
    ) -> Result<(), JournalError> {
        let mut random = SplitMix64::new(self.seed ^ delivery.next() << 8);
        let mut now = Duration::ZERO;
        for item in delivery.next()..self.items {
            let results = self.results(item);
            for (place, result) in results.iter().enumerate() {
                if self.broken == Some(BrokenDelivery::ItemTooEarly) && place + 1 == results.len() {
                    now += GROUP_TIME;
                    if delivery.end_items(item + 1, now)? {
                        delivery.commit(sink)?;
                    }
                }
                delivery.append(sink, result.clone())?;
                now += Duration::from_millis(random.below(10));
            }
            // Items without results may be told of together with the next one.
            let is_told = !results.is_empty() || item + 1 == self.items || random.below(2) == 0;
            if self.broken == Some(BrokenDelivery::ItemTooEarly) && !results.is_empty() {
                continue;
            }
            if is_told && delivery.end_items(item + 1, now)? {
                delivery.commit(sink)?;
            }
        }
        delivery.finish(sink)
    }

    /// Folds all items, and writes what they have folded to.
    fn fold(
        &self,
        journal: Journal,
        state: RunState,
        sink: FileSink,
        report: &mut CrashReport,
    ) -> Result<(), JournalError> {
        if state.is_finished {
            return Ok(());
        }
        report.folds_continued += u64::from(state.watermark > 0);
        let mut sink = FoldSink::new(sink, &state.position, self.broken)?;
        let mut delivery = Delivery::new(journal, state, true)?;
        let mut random = SplitMix64::new(self.seed ^ delivery.next() << 8);
        let mut now = Duration::ZERO;
        while delivery.next() < self.items {
            // A slice of the items.
            let end = self.items.min(delivery.next() + 1 + random.below(6));
            let slice = delivery.next()..end;
            let results = slice.flat_map(|item| self.results(item)).flatten();
            let folded = results.fold(None, |into, result| Some(fold::folded(into, &result)));
            if let Some(folded) = folded {
                delivery.append(&mut sink, Some(folded.to_le_bytes().to_vec()))?;
            }
            now += Duration::from_millis(random.below(60));
            if delivery.end_items(end, now)? {
                delivery.commit(&mut sink)?;
            }
        }
        sink.end()?;
        delivery.finish(&mut sink)
    }

    /// What becomes of an item.
    fn results(&self, item: u64) -> Vec<Option<Vec<u8>>> {
        let mut random = SplitMix64::new(self.seed.wrapping_mul(17) ^ item);
        let count = match self.form {
            ResultForm::One => 1,
            ResultForm::Many | ResultForm::Folded => random.below(6),
        };
        (0..count)
            .map(|place| self.result(item << 8 | place))
            .collect()
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
    fn check(&self, contents: &[u8], items: u64, is_finished: bool) -> Result<(), String> {
        let mut rest = contents;
        let mut expected: Vec<(u64, Vec<u8>)> = Vec::new();
        for item in 0..items {
            let results = self.results(item).into_iter().flatten();
            expected.extend(results.map(|result| (item, result)));
        }
        if self.form == ResultForm::Folded {
            let values = expected.iter().map(|(_, value)| value);
            let folded = values.fold(None, |into, value| Some(fold::folded(into, value)));
            let folded = folded.unwrap_or_default().to_le_bytes().to_vec();
            expected = if is_finished {
                vec![(items, folded)]
            } else {
                Vec::new()
            };
        }
        for (item, result) in expected {
            let framed = sink::framed(&result);
            rest = rest.strip_prefix(&*framed).ok_or_else(|| {
                let at = contents.len() - rest.len();
                format!("a result of item {item} is not in the sink at byte {at}, where it belongs")
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
