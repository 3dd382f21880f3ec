//! How a manager stands, for whoever looks from another thread.

use std::time::Duration;

use exoskel_node::manager::recruiter::PlaceState;
pub use exoskel_task::router::StreamState;

use super::{Attempt, WorkerReport};

/// How a manager stands.
#[derive(Debug, Clone, Default)]
pub struct ManagerStatus {
    /// Slots that can work.
    pub ready: u32,
    /// Slots that were asked for.
    pub wanted: u32,
    /// Slots that have items.
    pub busy: u32,
    /// How far each open stream is.
    pub streams: Vec<StreamState>,
    /// What each worker did, and for how long it has been in its state.
    pub workers: Vec<(WorkerReport, Duration)>,
    /// What recruiting does, a line for each place where something is to be said.
    pub recruiting: Vec<String>,
}

/// What recruiting does at one place; nothing where nothing is to be said.
pub(super) fn line(
    place: &str,
    state: PlaceState,
    attempts: &[Attempt],
    now: Duration,
) -> Option<String> {
    let failed = attempts.iter().rev().find(|known| known.worker == place);
    let why = failed.map_or_else(String::new, |attempt| format!(" ({})", attempt.error));
    match state {
        PlaceState::Served => None,
        PlaceState::Dialling => Some(format!("dialling {place}{why}")),
        PlaceState::Waiting(at) => {
            let left = at.saturating_sub(now).as_secs_f64();
            Some(format!("dialling {place} again in {left:.1} s{why}"))
        }
        PlaceState::Hopeless => Some(format!("{place} is not dialled any more{why}")),
        PlaceState::Unlisted => Some(format!("{place} is not listed any more")),
    }
}
