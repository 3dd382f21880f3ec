//! What the user of a manager is told besides outcomes.

use std::fmt;

use exoskel_identity::{Colours, PeerText};

/// What is kept of one message of output. A slot sends it in pieces of so many bytes.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;

/// Something to tell the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// What a task printed or logged.
    Output(Output),
    /// A change that the user should know of, such as the loss of a worker.
    Warning(String),
    /// One line per accepted or refused session.
    Audit(String),
}

/// What a task printed or logged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The worker's name, as its certificate proves it.
    pub worker: String,
    /// 0 standard output, 1 standard error, 2 log.
    pub stream: u8,
    /// The text, of one or more lines.
    pub text: PeerText,
    /// Whether it may keep its colours: where the worker can run code here anyway.
    pub colours: Colours,
}

/// Why a worker that could prove who it is gets no items. The text goes on where the worker's name ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unwanted {
    /// It doesn't have these modules, which the program imports.
    #[error("lacks {0}, which the program imports; it gets no items: install that there")]
    Lacks(String),
    /// The initializer raised this there.
    #[error("can't run the initializer: {0}")]
    Uninitialized(String),
    /// It is one of too many in a row that were lost before they could work.
    #[error("was lost {0}: {1}")]
    LostEarly(EarlyPhase, String),
    /// It has ended the session before it could work: its rules are against that.
    #[error("does not serve this manager: {0}")]
    Refuses(String),
    /// It is outside the trusted domains, where the contract allows no more slots.
    #[error("is outside the trusted domains, and Cost allows no more slots there")]
    OverCost,
    /// It broke too many sessions in a row.
    #[error(
        "is set aside and gets no more items: it {0}; check the wire to it and what is installed there"
    )]
    SetAside(String),
}

/// What a slot does before it gets work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EarlyPhase {
    /// It takes its settings in.
    Joining,
    /// It runs the initializer.
    Initializing,
}

impl fmt::Display for EarlyPhase {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Joining => "before it could work",
            Self::Initializing => "while it ran the initializer",
        })
    }
}

impl Unwanted {
    /// What the worker is told.
    #[must_use]
    pub fn refusal(&self) -> String {
        match self {
            Self::Lacks(modules) => {
                format!("the worker can't run the program: it lacks {modules}")
            }
            Self::Uninitialized(error) => {
                format!("the worker can't run the manager's initializer: {error}")
            }
            Self::LostEarly(phase, end) => format!("the worker was lost {phase}: {end}"),
            Self::Refuses(reason) => format!("the worker does not serve this manager: {reason}"),
            Self::OverCost => {
                "the manager's contract allows no more slots outside its trusted domains".to_owned()
            }
            Self::SetAside(reason) => format!("the worker is set aside: it {reason}"),
        }
    }
}

/// What a worker printed, as text, with a note in the place of what is too much.
pub(super) fn readable(output: &[u8]) -> String {
    let (kept, rest) = output.split_at(output.len().min(OUTPUT_BYTES_MAX));
    let mut text = String::from_utf8_lossy(kept).into_owned();
    if !rest.is_empty() {
        let note = format!("\n[output cut: {} bytes dropped]\n", rest.len());
        text.push_str(&note);
    }
    text
}
