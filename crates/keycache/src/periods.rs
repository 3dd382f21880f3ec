//! When a program computes and when it communicates: the ON and OFF periods of a trace.

use crate::model::{ModelError, OnOffParameters};
use crate::sequence::messages;
use exoskel_trace::Trace;

/// What makes an ON period of calls. A gap is computation, so it ends one if it is long; a message takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeriodRules {
    /// A gap of so much processor time or more is an OFF period; a shorter one belongs to its ON period.
    pub gap_ns: u64,
    /// What each message takes, whatever its size.
    pub message_ns: u64,
    /// How many bytes go in a microsecond.
    pub bytes_per_us: u64,
}

impl Default for PeriodRules {
    /// 20 microseconds; 1.5 microseconds for a message, 10 GB/s.
    fn default() -> Self {
        Self {
            gap_ns: 20_000,
            message_ns: 1_500,
            bytes_per_us: 10_000,
        }
    }
}

/// Means over all periods of all ranks of a trace.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Periods {
    /// How long an ON period is, in microseconds.
    pub on_us: f64,
    /// How long an OFF period is, in microseconds.
    pub off_us: f64,
    /// Messages of an ON period, sent and received.
    pub messages_per_on: f64,
    /// How many ON periods there were.
    pub periods: u64,
}

impl Periods {
    /// The periods of a trace; `None` if it has not both kinds. The threshold decides much: they are a choice as much as a property
    /// of the program.
    pub fn of(trace: &Trace, rules: &PeriodRules) -> Option<Self> {
        let mut total = Total::default();
        for (rank, records) in trace.ranks.iter().enumerate() {
            let mut on = On::default();
            for record in records {
                if record.gap_ns >= rules.gap_ns {
                    total.end(&mut on);
                    total.off_ns += record.gap_ns;
                    total.offs += 1;
                } else {
                    on.ns += record.gap_ns;
                }
                for (_, bytes) in messages(trace, rank, record) {
                    on.messages += 1;
                    on.ns += rules.message_ns;
                    on.bytes += u64::from(bytes);
                }
            }
            total.end(&mut on);
        }
        let on_ns = total.on_ns as f64 + total.bytes as f64 * 1e3 / rules.bytes_per_us as f64;
        (total.ons > 0 && total.offs > 0).then(|| Self {
            on_us: on_ns / 1e3 / total.ons as f64,
            off_us: total.off_ns as f64 / 1e3 / total.offs as f64,
            messages_per_on: total.messages as f64 / total.ons as f64,
            periods: total.ons,
        })
    }

    /// The chain with these means.
    ///
    /// # Errors
    ///
    /// [`ModelError::OffOn`] if their ratio is none that the model takes.
    pub fn model(&self) -> Result<OnOffParameters, ModelError> {
        OnOffParameters::new(self.off_us / self.on_us)
    }
}

/// An ON period that goes on.
#[derive(Default)]
struct On {
    ns: u64,
    bytes: u64,
    messages: u64,
}

#[derive(Default)]
struct Total {
    on_ns: u64,
    bytes: u64,
    messages: u64,
    ons: u64,
    off_ns: u64,
    offs: u64,
}

impl Total {
    /// Without a message, it was no ON period.
    fn end(&mut self, on: &mut On) {
        if on.messages > 0 {
            self.ons += 1;
            self.on_ns += on.ns;
            self.bytes += on.bytes;
            self.messages += on.messages;
        }
        *on = On::default();
    }
}
