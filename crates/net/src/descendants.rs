//! Processes that come from a slot: what its tasks have started, detached ones included.
//!
//! A slot adopts the orphans among its descendants, so that all of them stay below it whatever sessions and groups they make for
//! themselves. Whoever ends a slot ends these first. When a slot has fallen, they are its parent's if that adopts orphans, as the
//! supervisor of a worker does. A manager is the user's own process, which must not become the parent of strangers: it knows them by a
//! mark in their environment.

use std::ffi::CStr;
use std::io;
use std::time::{Duration, Instant};

use rustix::process::{
    DumpableBehavior, Pid, Signal, getppid, kill_process, set_child_subreaper,
    set_dumpable_behavior, set_parent_process_death_signal,
};

/// Processes that start others faster than they are ended are given up after this time.
const ENDING_TIME: Duration = Duration::from_secs(1);

/// Between two looks at who is left: what is killed takes about so long to go.
const PAUSE: Duration = Duration::from_millis(1);

/// Makes this process the parent of descendants whose own parent ends. It is for processes that run tasks and nothing else: who waits
/// for any child of theirs meets these as well.
///
/// # Errors
/// When the system refuses.
pub fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// Has the kernel end this process when `parent` ends, and gives it a name of up to 15 bytes for those who list processes. Says whether
/// `parent` is still there.
///
/// # Errors
/// When the system refuses.
pub fn follow_parent(parent: i32, name: &CStr) -> io::Result<bool> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    self::name(name)?;
    // Only now: it may have ended before it was to be followed.
    Ok(getppid().is_some_and(|process| process.as_raw_nonzero().get() == parent))
}

/// Gives this process a name of up to 15 bytes for those who list processes.
///
/// # Errors
/// When the system refuses.
pub fn name(name: &CStr) -> io::Result<()> {
    Ok(rustix::thread::set_name(name)?)
}

/// Has other processes of this account neither read this one's memory, environment and descriptors, nor trace it; it leaves no core dump.
/// What it executes has its own again.
///
/// # Errors
/// When the system refuses.
pub fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Ends everything that this process has started.
pub fn end_own() {
    end_below(rustix::process::getpid());
}

/// Ends a process that [adopts orphans](adopt_orphans), and everything that it has started.
pub(crate) fn end_with_descendants(process: Pid) {
    // It fails when the process has ended already. Stopped, it starts nothing new; what it adopts can still be found.
    let _ = kill_process(process, Signal::STOP);
    end_below(process);
    let _ = kill_process(process, Signal::KILL);
}

/// The variable of the environment that says which slot something comes from.
pub(crate) const MARK: &str = "EXOSKEL_STARTED_BY";

/// Ends what has this mark in its environment: what has come from a slot that has fallen, unless it was given another environment.
pub(crate) fn end_marked(mark: &str) {
    let variable = format!("{MARK}={mark}");
    let is_marked = |process: Pid| {
        let place = format!("/proc/{}/environ", process.as_raw_nonzero());
        // Those of other users can't be read.
        let environment = std::fs::read(place).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        variables.any(|found| found == variable.as_bytes())
    };
    let until = Instant::now() + ENDING_TIME;
    loop {
        let marked = processes().filter(|&process| is_marked(process) && runs(process));
        let ended = marked.filter(|&process| kill_process(process, Signal::KILL).is_ok());
        if ended.count() == 0 || Instant::now() > until {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// All processes that this one can see.
fn processes() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

/// Ends all descendants: when one of them ends, its children come to `root`, and are found there.
fn end_below(root: Pid) {
    let until = Instant::now() + ENDING_TIME;
    loop {
        let running = children(root).into_iter().filter(|&child| runs(child));
        // Who has ended meanwhile, or has other rights than ours, isn't waited for.
        let ended = running.filter(|&child| kill_process(child, Signal::KILL).is_ok());
        if ended.count() == 0 || Instant::now() > until {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The children of all threads of a process; none when it is gone.
fn children(process: Pid) -> Vec<Pid> {
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let threads = std::fs::read_dir(tasks).into_iter().flatten().flatten();
    let lists =
        threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| {
            let numbers = list.split_ascii_whitespace();
            numbers
                .filter_map(|number| Pid::from_raw(number.parse().ok()?))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Whether a process has not ended: one that nobody has waited for yet has.
fn runs(process: Pid) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    // The name before it may hold anything, brackets included.
    let state = state
        .ok()
        .and_then(|stat| stat.rsplit_once(") ")?.1.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
