//! What items came to, as the user gets it, and who made it.

use std::sync::{Arc, LazyLock};

use crate::payload::{Format, RecordReader};

/// Where bytes come from, and so how they may be read.
#[derive(Debug, PartialEq, Eq)]
pub struct Origin {
    /// The worker that made them; empty for the manager's own user.
    pub worker: String,
    /// The most that their records may be: [`Format::Pickle`] if everybody who touched them is trusted, else
    /// [`Format::Data`]. Data may come from anybody.
    pub format: Format,
}

impl Origin {
    /// The manager's own process: its pickles are as good as its own code.
    #[must_use]
    pub fn user() -> Arc<Self> {
        static USER: LazyLock<Arc<Origin>> = LazyLock::new(|| {
            Arc::new(Origin {
                worker: String::new(),
                format: Format::Pickle,
            })
        });
        USER.clone()
    }

    /// Whether everybody who touched the bytes is trusted, so that they may be a pickle.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.format == Format::Pickle
    }

    /// Whether a record from here may be written so.
    #[must_use]
    pub fn allows(&self, format: Format) -> bool {
        self.is_trusted() || format == Format::Data
    }

    /// The origin of what this one made of `token`: its maker stays named, and it is trusted only if both are.
    #[must_use]
    pub fn least_trusted(self: &Arc<Self>, token: &Arc<Self>) -> Arc<Self> {
        if token.is_trusted() || !self.is_trusted() {
            return self.clone();
        }
        Arc::new(Self {
            worker: self.worker.clone(),
            format: Format::Data,
        })
    }
}

/// Outcomes of consecutive items.
#[derive(Debug)]
pub struct Outcomes {
    /// The first item.
    pub first: u64,
    /// Number of items.
    pub count: u32,
    /// What they are.
    pub contents: Contents,
}

/// What outcomes are.
#[derive(Debug)]
pub enum Contents {
    /// Values and exceptions. None is a pickle unless the origin is trusted.
    Records(RecordReader, Arc<Origin>),
    /// Exceptions for which items run again, after the last of so many attempts.
    Exhausted {
        /// The exceptions.
        records: RecordReader,
        /// Whose they are.
        origin: Arc<Origin>,
        /// How often each item has run.
        attempts: u32,
    },
    /// Pickles from an origin that must send data: they were thrown away unread.
    Refused(Arc<Origin>),
    /// The item took down so many workers, one after the other, while it ran alone.
    WorkersLost {
        /// How many.
        count: u32,
        /// How the process of the last one ended, if that is known.
        last_end: Option<Arc<str>>,
    },
    /// The item would be made into parts of which there are too many.
    TooManyParts {
        /// How many there may be at a time, of all items.
        maximum: u32,
        /// The item is itself one of the parts that the function makes: what recurs may never end.
        recurs: bool,
    },
    /// The item would be made into parts while too many bytes are kept.
    TooManyBytes {
        /// How many may be kept at a time, of all items.
        maximum: u64,
        /// As of too many parts.
        recurs: bool,
    },
    /// There were no items to make one of, and no initial value.
    NothingToReduce,
    /// The item is larger than what the slot takes that it was for.
    TooLarge {
        /// The bytes of its message.
        bytes: u64,
        /// The most that the slot takes.
        maximum: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: trust is lost once and never comes back, and who made the bytes is named. Method: all pairs.
    #[test]
    fn the_least_trusted_of_two_origins_counts() {
        let of = |worker: &str, format| {
            let worker = worker.to_owned();
            Arc::new(Origin { worker, format })
        };
        for maker in [Format::Pickle, Format::Data] {
            for token in [Format::Pickle, Format::Data] {
                let made = of("maker", maker).least_trusted(&of("token", token));
                let expected = if [maker, token] == [Format::Pickle; 2] {
                    Format::Pickle
                } else {
                    Format::Data
                };
                assert_eq!((made.worker.as_str(), made.format), ("maker", expected));
                assert!(made.allows(Format::Data));
                assert_eq!(made.allows(Format::Pickle), expected == Format::Pickle);
            }
        }
    }
}
