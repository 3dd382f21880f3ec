//! What an item costs and how many are done in a second, from looks at the work.

use std::collections::VecDeque;
use std::time::Duration;

use crate::Workload;

/// Spans of time, the shortest first, that estimates are made of: a short one sees changes early, a long one sees them surely.
const SPANS: [Duration; 9] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(32),
    Duration::from_secs(64),
    Duration::from_secs(128),
    Duration::from_secs(256),
];

/// A span that is long enough to say something of a surplus, however few its items are.
const LONG: Duration = Duration::from_secs(16);

/// A span is short, or has few items, below this.
const SHORT: Duration = Duration::from_secs(4);
const ITEMS_SHORT: u64 = 64;

/// In a span so long frames have grown to what they will be.
const STEADY: Duration = Duration::from_secs(8);

/// What is judged by is the last so much time, or so much more that this many items were done in it, or what there is.
const JUDGED: Duration = Duration::from_secs(2);
const JUDGED_ITEMS: u64 = 8;
const JUDGED_ITEMS_EACH: u64 = 2;

/// Of few items, the truth may be far below their mean, but by no multiple of it: what their sum says of the mean, if times are exponential.
const SKEW: f64 = 1.3;

/// Nobody has looked for so long: what was before says nothing of now.
const GAP: Duration = Duration::from_secs(1);

/// Fewer items say nothing of what an item costs.
const ITEMS_MIN: u64 = 16;

/// So few say little, and of fewer the mean says nothing.
const ITEMS_FEW: u64 = 3;

/// The first item of each slot is passed over, unless it takes longer than this.
const COLD_TIME: Duration = Duration::from_secs(2);

/// A span whose mean may be farther from the truth than this share of it says nothing, unless it is the longest.
const DOUBT_MAX: f64 = 0.25;

/// Times of items differ by at least this share of their mean, and by no more than this, whatever was measured.
const VARIATION_MIN: f64 = 0.15;
const VARIATION_MAX: f64 = 2.0;

/// How far times are from their mean is known by so many looks at the most.
const VARIATION_LOOKS: usize = 64;

/// A few times are often more alike than all are, by this share of it if it was one.
const VARIATION_RISE: f64 = 1.0;

/// What they are thought to differ by before anything is known, and how fast that is given up with each time.
const VARIATION_UNKNOWN: f64 = 1.0;
const VARIATION_FALL: f64 = 0.8;

/// How sure an estimate has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// It may be wrong now and then.
    Likely,
    /// Wrong once in thousands of seconds.
    Sure,
}

/// What was between two looks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Items.
    pub(super) items: u64,
    /// Items a second.
    pub(super) rate: f64,
    /// The share of the slots' time for which they had items.
    pub(super) full: f64,
    /// Seconds of slots for an item.
    pub(super) cost: f64,
    /// It is all that was seen.
    is_whole: bool,
    /// Seconds of slots that had items.
    occupied: f64,
    /// Seconds of slots for the items that were done, from their beginning.
    pub(super) answered: f64,
}

/// Sums over the time that is believed.
#[derive(Clone, Copy, Debug, Default)]
struct WorkLook {
    /// That time.
    at: Duration,
    items: u64,
    /// Seconds of slots that had items.
    occupied: f64,
    /// The same up to their last answers.
    answered: f64,
    /// Seconds of slots.
    there: f64,
}

/// What was seen last.
#[derive(Clone, Copy, Debug)]
struct WorkBefore {
    at: Duration,
    finished: u64,
    /// Seconds of slots that had items.
    occupied: f64,
    /// The same up to their last answers.
    answered: f64,
    slots: u32,
    /// Slots that have items.
    running: u32,
}

/// Items that were done between two looks.
#[derive(Clone, Copy, Debug)]
struct ItemsDone {
    items: f64,
    /// The mean of their times, in seconds of slots.
    time: f64,
}

/// How far the times of items are from their mean, as a share of it. A change of the mean is no matter.
#[derive(Clone, Debug, Default)]
struct Variation {
    /// The last ones, each beside the one before.
    done: VecDeque<ItemsDone>,
    /// Seconds of slots for items that are not done.
    pending: f64,
    value: Option<f64>,
}

/// What looks at the work have shown. While slots that have just come load what they need, nothing is learned.
#[derive(Clone, Debug, Default)]
pub(super) struct Estimates {
    looks: VecDeque<WorkLook>,
    seen: Option<WorkBefore>,
    /// The believed time at which there was another number of slots.
    changed_at: Duration,
    variation: Variation,
    /// Time in functions and time with items, up to the slots' answers, when learning began and at the last look.
    answered: Option<[(Duration, Duration); 2]>,
    at_work: Option<f64>,
    /// Slots have come: what they do is not believed until then.
    settled_at: Duration,
    /// Since when, and with how many items done, the first items of these slots run.
    cold: Option<(Duration, u64)>,
}

impl Estimates {
    /// Takes a look in.
    pub(super) fn take(&mut self, work: &Workload, now: Duration, settling: Duration) {
        let seen = WorkBefore {
            at: now,
            finished: work.finished,
            occupied: (work.occupied + work.underway).as_secs_f64(),
            answered: work.occupied.as_secs_f64(),
            slots: work.slots,
            running: work.running,
        };
        let last = self.seen.replace(seen);
        let last = last.filter(|last| now.saturating_sub(last.at) <= GAP);
        let slots_before = last.map_or(0, |last| last.slots);
        if work.slots > slots_before {
            self.settled_at = now + settling;
            self.cold = Some((now, work.finished));
        }
        self.warm_up(work, now);
        let Some(last) = last else {
            self.looks.clear();
            self.changed_at = Duration::ZERO;
            return;
        };
        if self.looks.is_empty() {
            self.looks.push_back(WorkLook::default());
        }
        let before = self.looks.back().copied().unwrap_or_default();
        if work.slots != slots_before {
            self.changed_at = before.at;
        }
        if self.cold.is_some() || now < self.settled_at {
            self.answered = None;
            return;
        }
        let passed = now.saturating_sub(last.at);
        let items = work.finished.saturating_sub(last.finished);
        let answered = (seen.answered - last.answered).max(0.0);
        self.variation.learn(items, answered);
        self.looks.push_back(WorkLook {
            at: before.at + passed,
            items: before.items + items,
            occupied: before.occupied + (seen.occupied - last.occupied).max(0.0),
            answered: before.answered + answered,
            there: before.there + passed.as_secs_f64() * f64::from(work.slots),
        });
        let longest = SPANS[SPANS.len() - 1];
        let is_old = |second: &WorkLook| second.at + longest <= before.at;
        while self.looks.get(1).is_some_and(is_old) {
            self.looks.pop_front();
        }
        self.learn_of_work(work);
    }

    /// The first items of slots load what they need.
    fn warm_up(&mut self, work: &Workload, now: Duration) {
        let Some((since, finished)) = self.cold else {
            return;
        };
        let is_warm = work.finished.saturating_sub(finished) >= u64::from(work.slots);
        if is_warm || work.has_work() && now.saturating_sub(since) >= COLD_TIME {
            self.cold = None;
        } else if !work.has_work() {
            self.cold = Some((now, finished));
        }
    }

    fn learn_of_work(&mut self, work: &Workload) {
        let answered = (work.busy, work.occupied);
        let [(busy, occupied), last] = self.answered.get_or_insert([answered; 2]);
        *last = answered;
        let with_items = work.occupied.saturating_sub(*occupied).as_secs_f64();
        if with_items > 0.0 {
            let in_functions = work.busy.saturating_sub(*busy).as_secs_f64();
            self.at_work = Some(in_functions / with_items);
        }
    }

    /// Whether the last look has shown something.
    pub(super) fn learns(&self) -> bool {
        self.answered.is_some()
    }

    /// Whether so few items were seen that they may all be other than most are.
    pub(super) fn is_new(&self) -> bool {
        let last = self.looks.back().map_or(0, |look| look.items);
        let first = self.looks.front().map_or(0, |look| look.items);
        last - first < ITEMS_MIN
    }

    /// Seconds for which the items that run have run.
    pub(super) fn underway(&self) -> f64 {
        let seen = self.seen.map(|seen| seen.occupied - seen.answered);
        seen.unwrap_or(0.0).max(0.0)
    }

    /// The same for each of them, on the average.
    pub(super) fn underway_each(&self) -> f64 {
        let running = self.seen.map_or(0, |seen| seen.running);
        self.underway() / f64::from(running.max(1))
    }

    /// How long slots were as many as now, as far as that is believed.
    pub(super) fn unchanged(&self) -> Duration {
        let now = self.looks.back().map_or(Duration::ZERO, |look| look.at);
        now.saturating_sub(self.changed_at)
    }

    /// Whether items were done lately.
    pub(super) fn moves(&self) -> bool {
        let lately = self.span(JUDGED).or_else(|| self.span(SPANS[0]));
        lately.is_some_and(|lately| lately.items > 0)
    }

    /// The share of the time with items that slots spend in functions; all of it if that is not known.
    pub(super) fn at_work(&self) -> f64 {
        self.at_work.unwrap_or(1.0)
    }

    /// What is judged by, if there is enough of it.
    pub(super) fn judged(&self) -> Option<Span> {
        let lengths = SPANS.iter().filter(|length| **length >= JUDGED);
        let mut longest = None;
        for span in lengths.filter_map(|length| self.span(*length)) {
            if span.items >= self.judged_items() {
                return Some(span);
            }
            longest = Some(span);
        }
        longest.or_else(|| self.span(SPANS[0]))
    }

    /// Items of slots that have begun together end together: each slot has to have done some.
    fn judged_items(&self) -> u64 {
        let running = self.seen.map_or(0, |seen| seen.running);
        JUDGED_ITEMS.max(JUDGED_ITEMS_EACH * u64::from(running))
    }

    /// Whether what is judged by is of enough items, or there can't be more of them.
    pub(super) fn is_sure(&self) -> bool {
        let judged = self.judged();
        judged.is_some_and(|judged| judged.items >= self.judged_items())
            || self.span(SPANS[SPANS.len() - 1]).is_some()
    }

    /// Seconds of slots that an item takes at least. A change to less that a short span has seen counts more than what a long one has.
    ///
    /// Items that run count before they end: an item that has run for 6 s takes at least that.
    pub(super) fn cost_at_least(&self, doubt: f64, certainty: Certainty) -> f64 {
        let Some(seen) = self.seen else {
            return 0.0;
        };
        let underway = self.underway();
        let (mut least, mut most) = (0.0, f64::INFINITY);
        for (length, span) in self.lengths_and_spans() {
            let doubt = doubt * doubt_of(length, &span, certainty);
            let together = span.answered + underway;
            // All that run now may be done in a moment: if times are all the same, the mean of them all is not above the truth. If they
            // differ, it may be by chance, and the more so the fewer have ended.
            let if_same = together / (span.items + u64::from(seen.running)).max(1) as f64;
            let ended = span.items + 1;
            let seconds = match span.is_whole {
                true => together,
                false => span.occupied,
            };
            let if_not = seconds / ended as f64 * self.least(ended, doubt);
            // In less time than an item takes, what ends and what doesn't is no matter of chance.
            let mut surely = match span.is_whole || span.items >= u64::from(seen.running) {
                true => if_same.min(if_not),
                false => 0.0,
            };
            if span.items >= ITEMS_FEW {
                surely = surely.max(span.cost * self.least(span.items, doubt));
            }
            least = surely.min(most).max(least);
            if span.items >= ITEMS_FEW {
                most = most.min(span.cost * self.most(&span, doubt));
            }
        }
        least
    }

    /// Seconds of slots that an item takes at most, if enough is known. A change that only the short spans have seen counts.
    pub(super) fn cost_at_most(&self, doubt: f64) -> Option<f64> {
        let mut most: Option<f64> = None;
        for (length, span) in self.lengths_and_spans() {
            if span.items < ITEMS_MIN {
                continue;
            }
            let is_sure = self.doubt(span.items, doubt) <= DOUBT_MAX;
            if is_sure || length >= LONG {
                let cost = span.answered / span.items as f64;
                let cost = cost * (1.0 + self.doubt(span.items, doubt));
                most = Some(most.map_or(cost, |most| most.max(cost)));
            }
            if length >= LONG {
                break;
            }
        }
        most.map(|most| most.max(self.cost_at_least(doubt, Certainty::Likely)))
    }

    /// At least one of so many items takes this share of their mean, in nine cases of ten: all of it if times are all the same.
    pub(super) fn longest_share(&self, items: u64) -> f64 {
        let items = items.max(1) as f64;
        // If times are exponential.
        let share = -(1.0 - 0.1_f64.powf(1.0 / items)).ln();
        (1.0 - self.variation() * (1.0 - share)).min(1.0)
    }

    /// How far the times of items are from their mean, as a share of it; not more than if they are exponential.
    pub(super) fn variation(&self) -> f64 {
        self.variation.value().min(1.0)
    }

    /// How far the mean of so many items may be from the truth, as a share of it.
    fn doubt(&self, items: u64, deviations: f64) -> f64 {
        deviations * self.variation.value() / (items.max(1) as f64).sqrt()
    }

    /// The share of the mean of so many items that the truth is not below.
    fn least(&self, items: u64, deviations: f64) -> f64 {
        let doubt = self.doubt(items, deviations);
        (1.0 - doubt).max(1.0 / (1.0 + SKEW * doubt))
    }

    /// The multiple of the mean of its items that the truth is not above.
    fn most(&self, span: &Span, deviations: f64) -> f64 {
        let doubt = self.doubt(span.items, deviations);
        match span.items >= ITEMS_MIN {
            true => 1.0 + doubt,
            false => (SKEW * doubt).exp(),
        }
    }

    /// All spans that there are, and what there is.
    fn lengths_and_spans(&self) -> impl Iterator<Item = (Duration, Span)> {
        let last = self.looks.back().map_or(Duration::ZERO, |look| look.at);
        let whole = SPANS[0]..SPANS[SPANS.len() - 1];
        let whole = Some(last).filter(|last| whole.contains(last));
        let spans = SPANS.iter().copied().chain(whole);
        spans.filter_map(|length| Some((length, self.span(length)?)))
    }

    /// The last so much believed time, if there is so much.
    fn span(&self, length: Duration) -> Option<Span> {
        let last = self.looks.back()?;
        let begin = last.at.checked_sub(length)?;
        let place = self.looks.partition_point(|look| look.at <= begin);
        let place = place.checked_sub(1)?;
        let first = self.looks.get(place)?;
        let seconds = last.at.saturating_sub(first.at).as_secs_f64();
        let items = last.items - first.items;
        let there = last.there - first.there;
        let occupied = last.occupied - first.occupied;
        let answered = last.answered - first.answered;
        // What slots are idle between two frames is lost, too; but at first, frames are small.
        let idle = match length >= STEADY && occupied > 0.0 {
            true => there / occupied,
            false => 1.0,
        };
        Some(Span {
            items,
            rate: items as f64 / seconds,
            full: if there > 0.0 { occupied / there } else { 0.0 },
            cost: answered / items.max(1) as f64 * idle,
            is_whole: place == 0,
            occupied,
            answered,
        })
    }
}

impl Variation {
    /// So many items were done, in so many seconds of slots.
    fn learn(&mut self, items: u64, answered: f64) {
        self.pending += answered;
        if items == 0 {
            return;
        }
        let items = items as f64;
        let time = std::mem::take(&mut self.pending) / items;
        self.done.push_back(ItemsDone { items, time });
        if self.done.len() > VARIATION_LOOKS {
            self.done.pop_front();
        }
        self.value = Some(self.shown());
    }

    /// As far as it is known: rather more.
    fn value(&self) -> f64 {
        self.value.unwrap_or(VARIATION_UNKNOWN)
    }

    fn shown(&self) -> f64 {
        let later = self.done.iter().skip(1);
        let (mut count, mut squares, mut means, mut shares) = (0.0, 0.0, 0.0, 0.0);
        for (before, after) in self.done.iter().zip(later) {
            // Each of two means of several times is nearer to the mean of all than each time is.
            let share = 1.0 / before.items + 1.0 / after.items;
            let distance = after.time - before.time;
            squares += distance * distance / share;
            means += (before.time * before.time + after.time * after.time) / 2.0;
            shares += share / 2.0;
            count += 1.0;
        }
        let unknown = VARIATION_UNKNOWN * VARIATION_FALL.powf(count);
        if means <= 0.0 {
            return unknown.clamp(VARIATION_MIN, VARIATION_MAX);
        }
        // The mean of a square is the square of the mean, and more by as much as times differ.
        let square = squares / means;
        let rest = (1.0 - square * shares / count).max(0.1);
        let shown = (square / rest).sqrt() * (1.0 + VARIATION_RISE / f64::sqrt(count));
        shown.max(unknown).clamp(VARIATION_MIN, VARIATION_MAX)
    }
}

/// What a span says is doubted by so much more. Short spans, and those of few items, are many, and some of them are far from the truth by chance. What
/// was seen from the beginning is one.
fn doubt_of(length: Duration, span: &Span, certainty: Certainty) -> f64 {
    let is_few = span.items < ITEMS_MIN && !span.is_whole;
    let is_short = (length < SHORT || span.items < ITEMS_SHORT) && !span.is_whole;
    match certainty {
        _ if is_few => 2.5,
        Certainty::Sure if is_short => 2.5,
        Certainty::Sure => 1.7,
        Certainty::Likely if is_short => 1.2,
        Certainty::Likely if span.is_whole => 0.8,
        Certainty::Likely => 0.6,
    }
}
