//! What happened last in a run that broke a promise.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Lines that are kept.
const LINES_MAX: usize = 40;

/// The last events of a run. Whoever has a copy sees them after the run has ended, by a panic too.
#[derive(Clone, Default)]
pub(super) struct TraceEnd {
    kept: Rc<RefCell<VecDeque<String>>>,
}

impl TraceEnd {
    pub(super) fn note(&self, at: Duration, what: &str) {
        let mut kept = self.kept.borrow_mut();
        if kept.len() == LINES_MAX {
            kept.pop_front();
        }
        kept.push_back(format!("{:.6} s: {what}", at.as_secs_f64()));
    }

    pub(super) fn lines(&self) -> Vec<String> {
        self.kept.borrow().iter().cloned().collect()
    }
}
