//! A process that is a child of this one: whether it runs, how it has ended, its end.

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process, kill_process_group, waitid,
};

use crate::descendants::{end_marked, end_with_descendants};

/// A child, until it is waited for: then its number may be another process's.
#[derive(Debug)]
pub(super) struct ChildProcess(Pid);

/// How the process of a child ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ProcessEnd {
    /// By its exit code or by a signal, in words.
    Known(String),
    /// Somebody else in this process has waited for it.
    Unknown,
}

/// What became of a child, from better to worse.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ChildState {
    Runs,
    /// It has ended what its tasks left, as a slot does that leaves in order.
    Left,
    /// Nobody has ended what its tasks left.
    Fallen,
    /// Somebody else in this process has waited for it.
    Unknown,
}

impl ChildProcess {
    /// The child of this number.
    pub(super) fn new(number: u32) -> Option<Self> {
        let number = i32::try_from(number).ok()?;
        Pid::from_raw(number).map(Self)
    }

    /// How it has ended; none as long as it runs.
    pub(super) fn process_end(&self) -> Option<ProcessEnd> {
        let Ok(status) = self.look() else {
            return Some(ProcessEnd::Unknown);
        };
        let status = status?;
        let code = status.exit_status().map(|code| format!("exit code {code}"));
        let how = code.or_else(|| Some(killed_by(status.terminating_signal()?)));
        Some(how.map_or(ProcessEnd::Unknown, ProcessEnd::Known))
    }

    /// Without waiting for it: until then nobody else has its number, or that of its group.
    pub(super) fn state(&self) -> ChildState {
        match self.look() {
            Ok(None) => ChildState::Runs,
            Ok(Some(status)) if status.exit_status() == Some(0) => ChildState::Left,
            Ok(Some(_)) => ChildState::Fallen,
            Err(_) => ChildState::Unknown,
        }
    }

    fn look(&self) -> Result<Option<WaitIdStatus>, Errno> {
        let without_waiting = WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.0), WaitIdOptions::EXITED | without_waiting)
    }

    /// Ends it and what it has left, which is looked for everywhere by its mark if it is found in this state or a worse one.
    pub(super) fn end(self, suspicious: ChildState, mark: &str) {
        let state = self.state();
        if state != ChildState::Unknown {
            if state == ChildState::Runs {
                end_with_descendants(self.0);
            }
            let _ = kill_process_group(self.0, Signal::KILL);
        }
        if state >= suspicious {
            end_marked(mark);
        }
        self.wait();
    }

    /// Ends it alone.
    pub(super) fn kill(self) {
        if self.state() == ChildState::Runs {
            let _ = kill_process(self.0, Signal::KILL);
        }
        self.wait();
    }

    fn wait(self) {
        while matches!(
            waitid(WaitId::Pid(self.0), WaitIdOptions::EXITED),
            Err(Errno::INTR)
        ) {}
    }
}

/// The signals that end processes by themselves, or by whoever ends processes.
const SIGNALS: [(Signal, &str); 12] = [
    (Signal::HUP, "SIGHUP"),
    (Signal::INT, "SIGINT"),
    (Signal::QUIT, "SIGQUIT"),
    (Signal::ILL, "SIGILL"),
    (Signal::TRAP, "SIGTRAP"),
    (Signal::ABORT, "SIGABRT"),
    (Signal::BUS, "SIGBUS"),
    (Signal::FPE, "SIGFPE"),
    (Signal::KILL, "SIGKILL"),
    (Signal::SEGV, "SIGSEGV"),
    (Signal::TERM, "SIGTERM"),
    (Signal::XCPU, "SIGXCPU"),
];

/// For people, to whom a number says little.
fn killed_by(number: i32) -> String {
    let known = SIGNALS.iter().find(|(signal, _)| signal.as_raw() == number);
    let name = known.map_or_else(String::new, |(_, name)| format!(" ({name})"));
    format!("killed by signal {number}{name}")
}
