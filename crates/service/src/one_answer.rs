//! The one answer for which a stranger's connection is open.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

/// How far a connection is that ends with its first answer.
#[derive(Debug, Default)]
pub(crate) struct OneAnswer {
    asked: Notify,
    answered: Notify,
}

/// An answer that is being given, until this is dropped.
#[derive(Debug)]
pub(crate) struct GivenAnswer(Arc<OneAnswer>);

impl OneAnswer {
    /// Waits for the first request, but not for longer than `time`.
    pub(crate) async fn asked(&self, time: Duration) {
        let asked = tokio::time::timeout(time, self.asked.notified()).await;
        if asked.is_err() {
            // Whoever asks nothing has to go like those who have their answer.
            self.answered.notify_one();
        }
    }

    /// The client has asked.
    pub(crate) fn begin(self: &Arc<Self>) -> GivenAnswer {
        self.asked.notify_one();
        GivenAnswer(self.clone())
    }

    /// Waits until the client has had `time` to fetch the rest of its answer and to go.
    pub(crate) async fn over(&self, time: Duration) {
        self.answered.notified().await;
        tokio::time::sleep(time).await;
    }
}

impl Drop for GivenAnswer {
    fn drop(&mut self) {
        self.0.answered.notify_one();
    }
}
