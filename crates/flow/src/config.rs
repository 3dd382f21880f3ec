//! The settings of a scheduler: every limit has a name here.

use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// The most that `grant_bytes_min` counts for, so that sums over all items never overflow.
const GRANT_MIN_MAX: u64 = 1 << 30;

/// Tickets are so many times what the windows of all slots hold: the ready items behind the windows keep frames
/// large and the order of outcomes from stopping the input.
pub(crate) const WINDOWS_INSIDE: u64 = 4;

/// Frames of the size that comes next that a window holds while times are not known or not to be trusted yet.
pub(crate) const FRAMES_UNTIMED: u64 = 2;

/// Tickets for each slot before anything is known: the first frames have one item.
const TICKETS_FIRST: u64 = WINDOWS_INSIDE * FRAMES_UNTIMED;

/// Limits and aims of a [`Scheduler`](crate::Scheduler). The defaults suit a handful of machines; values of 0 count as 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Items in one frame; 1 sends every item by itself.
    pub frame_items_max: u32,
    /// Input bytes in one frame, unless a single item has more.
    pub frame_bytes_max: u64,
    /// How long a slot should be busy with one frame: long enough that dispatching costs nothing, short enough that
    /// the last frames end together.
    pub frame_time: Duration,
    /// The same, of a frame whose items the slot folds into one: the longer it is, the fewer partial results there are to combine.
    pub fold_time: Duration,
    /// How much work, by estimate, waits at a slot. Whatever this says, one frame waits behind the running one, so
    /// that sending hides behind computing.
    pub window_time: Duration,
    /// The measured round trip to a slot is added to `window_time`, up to this.
    pub round_trip_max: Duration,
    /// Input bytes that wait at a slot, beyond the first two frames.
    pub window_bytes_max: u64,
    /// Frames that wait at a slot.
    pub window_frames_max: u32,
    /// How many workers an item may lose, running alone, before it fails; and how often it runs in a segment that raises
    /// exceptions for which it runs again.
    pub retries: u32,
    /// Result bytes of one stream that are held by the manager or may arrive without asking, tokens between segments among them. May
    /// be passed by the result of the oldest item not taken, and by [`Self::grant_bytes_min`] for every item inside.
    pub result_budget_bytes: u64,
    /// Input bytes of one stream that may be held, beyond the fewest tickets that keep all slots busy.
    pub input_budget_bytes: u64,
    /// What a result may have without asking, while there is budget (or twice the average, if that is more).
    pub grant_bytes: u64,
    /// What a result and the token that it is made of may have without asking even when there is no budget left. An eighth of it is a result's in any case.
    pub grant_bytes_min: u64,
    /// Items of a bounded stream between admission and taking.
    pub tickets_max: u32,
    /// Items of an unbounded stream between admission and taking.
    pub submitted_max: u32,
    /// Bytes that may be kept of one stream when another item of it is made into parts: tokens, outcomes and states, and what is known of each item.
    /// Two messages more are allowed, see [`Self::kept_bytes_most`].
    pub kept_bytes_max: u64,
    /// Work that is taken back from a busy slot for an idle one must be worth this much by estimate, or its slot
    /// must have been silent for so long.
    pub recall_time: Duration,
    /// When slots are idle, an item that runs for more than this many hundredths of the time that is usual in its segment runs at a second
    /// slot, too, and the first answer counts. 0: never.
    pub stragglers: u32,
    /// It must run for more than this, too.
    pub straggler_time: Duration,
    /// A slot that has not answered for so long, beyond the time that its item may run, is [overdue](crate::Action::Overdue). It may have to load what the item needs.
    pub answer_time: Duration,
    /// Bytes a second that go there and come back at least, or the slot is overdue.
    pub answer_rate_min: u64,
    /// Slots at the same time.
    pub slots_max: u32,
    /// Streams at the same time.
    pub streams_max: u32,
}

impl SchedulerConfig {
    /// The most bytes of items and results that one bounded stream makes the manager hold or may bring it without
    /// asking, whatever slots do, when neither an item nor a result has more than `item_bytes_max` bytes and there
    /// are never more than so many slots.
    ///
    /// Results: the budget, the least grant of every item inside, and the oldest item's token and result, which may
    /// always move. Items: the budget, or what the first tickets admit before any size is known. The user decides how
    /// large items are: when small ones suddenly become large, those for which there are tickets already come on top.
    pub fn memory_bytes_max(&self, slots: u32, item_bytes_max: u64) -> u64 {
        let tickets = u64::from(self.tickets_max.max(1));
        let grants = self.grant_bytes_least().saturating_mul(tickets);
        let oldest = item_bytes_max.saturating_mul(2);
        let first_tickets = (TICKETS_FIRST * u64::from(slots)).clamp(1, tickets);
        let items = item_bytes_max.saturating_mul(first_tickets);
        self.result_budget_bytes
            .saturating_add(grants)
            .saturating_add(oldest)
            .saturating_add(self.input_budget_bytes.max(items))
    }

    /// The most bytes that are kept of a stream when items of it are made into others, if messages have at most so many: [`Self::kept_bytes_max`], and the
    /// token and the result of the oldest item, which may always move.
    pub fn kept_bytes_most(&self, message_bytes_max: u64) -> u64 {
        self.kept_bytes_max
            .saturating_add(message_bytes_max.saturating_mul(2))
    }

    /// How many lost workers an item is charged with at most: [`Self::retries`], within what an item counts.
    pub(crate) fn charges_max(&self) -> u8 {
        u8::try_from(self.retries.max(1)).unwrap_or(u8::MAX)
    }

    /// What each result may have without asking at least.
    pub(crate) fn grant_bytes_least(&self) -> u64 {
        self.grant_bytes_min.min(GRANT_MIN_MAX)
    }
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self {
            frame_items_max: 4096,
            frame_bytes_max: MIB,
            frame_time: Duration::from_millis(2),
            fold_time: Duration::from_millis(50),
            window_time: Duration::from_millis(10),
            round_trip_max: Duration::from_millis(500),
            window_bytes_max: 4 * MIB,
            window_frames_max: 1024,
            retries: 3,
            result_budget_bytes: 128 * MIB,
            input_budget_bytes: 64 * MIB,
            grant_bytes: 64 * KIB,
            grant_bytes_min: 4 * KIB,
            tickets_max: 32_768,
            submitted_max: 1 << 24,
            kept_bytes_max: 2 << 30,
            recall_time: Duration::from_millis(1),
            stragglers: 0,
            straggler_time: Duration::from_millis(100),
            answer_time: Duration::from_secs(300),
            answer_rate_min: 64 * KIB,
            slots_max: 4096,
            streams_max: 4096,
        }
    }
}

/// How a stream takes items in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tickets {
    /// Only as many items as keep the slots busy are inside at a time: for `map` over an iterable of any length.
    #[default]
    Bounded,
    /// Any number, up to the `submitted_max` of the configuration: for `submit`, which never waits.
    Unbounded,
}

/// The settings of one stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// How it takes items in.
    pub tickets: Tickets,
    /// For how long an item may run in a segment, which slots see to. A slot that doesn't is [overdue](crate::Action::Overdue).
    pub time_limit: Option<Duration>,
}
