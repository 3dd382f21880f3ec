//! What drives a node: its own thread, or a thread of its user's that calls from time to time.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::{LocalSet, yield_now};

use super::{GatewayAddress, LinkShared, driver};
use crate::listening::{Listener, Listening, SocketFile};
use crate::sources::NodeConfigRenewal;

/// How long tasks that are left over may take to end.
const LEFT_OVER_TIME: Duration = Duration::from_secs(1);

/// What a driver is made of, on whatever thread.
pub struct LinkDriverParts {
    shared: Arc<LinkShared>,
    runtime: Runtime,
    listeners: Vec<(Listener, Option<SocketFile>)>,
    status: Option<(Listener, Option<SocketFile>)>,
    gateways: Vec<GatewayAddress>,
    renewal: Option<NodeConfigRenewal>,
}

/// Drives a node that has no thread of its own. It stays on the thread that made it.
pub struct LinkDriver {
    shared: Arc<LinkShared>,
    run: Option<Pin<Box<dyn Future<Output = ()>>>>,
    tasks: LocalSet,
    runtime: Option<Runtime>,
}

impl LinkDriverParts {
    pub(super) fn new(
        shared: Arc<LinkShared>,
        listen: Vec<Listening>,
        status: Option<Listening>,
        gateways: Vec<GatewayAddress>,
        renewal: Option<NodeConfigRenewal>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let entered = runtime.enter();
        let listeners = listen.into_iter().map(Listening::into_parts);
        let listeners = listeners.collect::<io::Result<_>>()?;
        let status = status.map(Listening::into_parts).transpose()?;
        drop(entered);
        Ok(Self {
            shared,
            runtime,
            listeners,
            status,
            gateways,
            renewal,
        })
    }

    /// The driver, for the calling thread.
    #[must_use]
    pub fn driver(self) -> LinkDriver {
        let run = driver::run(
            self.shared.clone(),
            self.listeners,
            self.status,
            self.gateways,
            self.renewal,
        );
        LinkDriver {
            shared: self.shared,
            run: Some(Box::pin(run)),
            tasks: LocalSet::new(),
            runtime: Some(self.runtime),
        }
    }
}

impl LinkDriver {
    /// Does what there is to do: dials, accepts, reads and writes. If there is nothing, waits for `patience` at most until there is.
    /// Says whether the node goes on: one that is closed needs this until it doesn't.
    pub fn progress(&mut self, patience: Duration) -> bool {
        let (Some(run), Some(runtime)) = (&mut self.run, &self.runtime) else {
            return false;
        };
        let shared = &self.shared;
        let turn = async {
            if patience.is_zero() {
                // Once to let the tasks run, once to look at the sockets, and once for what that has brought.
                for _ in 0..3 {
                    yield_now().await;
                }
            } else {
                // Nothing has come, and that is all it says.
                let _ = tokio::time::timeout(patience, shared.progressed.notified()).await;
            }
        };
        let is_over = self.tasks.block_on(runtime, async {
            tokio::select! {
                biased;
                () = run => true,
                () = turn => false,
            }
        });
        if is_over {
            self.end();
        }
        !is_over
    }

    /// Drives it to its end.
    pub(super) fn run_to_end(mut self) {
        if let (Some(run), Some(runtime)) = (self.run.take(), &self.runtime) {
            self.tasks.block_on(runtime, run);
        }
    }
}

impl LinkDriver {
    /// Lets go of the tasks and their descriptors, and waits for commands that end.
    fn end(&mut self) {
        self.run = None;
        drop(std::mem::take(&mut self.tasks));
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(LEFT_OVER_TIME);
            // The tasks have let go of them.
            self.shared.commands.wait();
        }
    }
}

impl Drop for LinkDriver {
    fn drop(&mut self) {
        self.end();
    }
}
