//! What steers and watches a server while it runs.

use std::fmt;
use std::sync::Arc;

use crate::metrics::Metrics;
use crate::server_state::ServerState;

/// Steers and watches a server.
#[derive(Clone)]
pub struct ServerHandle {
    state: Arc<ServerState>,
}

impl fmt::Debug for ServerHandle {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("ServerHandle")
            .finish_non_exhaustive()
    }
}

impl ServerHandle {
    /// Stops accepting, and asks connections to finish.
    pub fn stop(&self) {
        self.state.stopping.send_replace(true);
    }

    /// Whether [`stop`](Self::stop) was called.
    pub fn is_stopping(&self) -> bool {
        *self.state.stopping.borrow()
    }

    /// The server's numbers.
    pub fn metrics(&self) -> &Arc<Metrics> {
        self.state.connections.metrics()
    }

    /// Connections now, and how many of them are in their handshake.
    pub fn open(&self) -> (usize, usize) {
        self.state.connections.count()
    }

    /// Waits until [`stop`](Self::stop) is called.
    pub async fn stopping(&self) {
        self.state.stopping().await;
    }

    pub(crate) fn new(state: Arc<ServerState>) -> Self {
        Self { state }
    }

    pub(crate) fn state(&self) -> &Arc<ServerState> {
        &self.state
    }
}
