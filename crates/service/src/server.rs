//! A listening server, from its first connection to its last.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::accept::accept;
use crate::handle::ServerHandle;
use crate::limits::{BACKLOG, WATCH_INTERVAL};
use crate::metrics::ConnectionEnd;
use crate::own_task::AbortOnDrop;
use crate::peer::Handler;
use crate::renewal::tell;
use crate::server_state::ServerState;
use crate::settings::{Settings, StartError};
use crate::tls::server_config;

/// A listening server.
pub struct Server {
    listener: TcpListener,
    settings: Settings,
    state: Arc<ServerState>,
}

impl fmt::Debug for Server {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(formatter)
    }
}

impl Server {
    /// Listens. Clients wait in the kernel's queue until [`run`](Self::run).
    ///
    /// # Errors
    /// [`StartError`] says what the administrator must change.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn bind(settings: Settings) -> Result<Self, StartError> {
        settings.limits.check()?;
        let state = ServerState::new(&settings)?;
        let listener = listen(settings.listen).map_err(|reason| StartError::Listen {
            address: settings.listen,
            reason,
        })?;
        Ok(Self {
            listener,
            settings,
            state,
        })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// When the system can't say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// What steers and watches the server while it runs.
    pub fn handle(&self) -> ServerHandle {
        ServerHandle::new(self.state.clone())
    }

    /// Serves until [`ServerHandle::stop`], then lets connections finish for [`Limits::shutdown_time`].
    ///
    /// # Errors
    /// [`StartError`] when the TLS engine can't be set up.
    pub async fn run<H: Handler>(self, handler: H) -> Result<(), StartError> {
        let config = server_config(
            self.state.host.provider.clone(),
            self.state.admission.clone(),
            self.state.host.current.clone(),
            H::PROTOCOLS,
            handler.strangers(),
            self.settings.time.clone(),
        )?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let watchman = AbortOnDrop(tokio::spawn(watch_connections(self.state.clone())));
        accept(&self.listener, &self.state, &acceptor, Arc::new(handler)).await;
        drop(self.listener);
        let emptied = self.state.connections.emptied();
        let time = self.settings.limits.shutdown_time;
        if tokio::time::timeout(time, emptied).await.is_err() {
            self.state.connections.end_all(ConnectionEnd::Shutdown);
            self.state.connections.emptied().await;
        }
        drop(watchman);
        Ok(())
    }
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM.nonblocking().cloexec(),
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    // Accepted sockets inherit it, which saves a system call for each.
    socket.set_tcp_nodelay(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Two loops: reading files may take as long as a disk or a network lets it, and slow clients must not profit from that.
async fn watch_connections(state: Arc<ServerState>) {
    let watching = async {
        let mut ticks = watch_ticks();
        loop {
            ticks.tick().await;
            state.connections.watch(state.now());
        }
    };
    let handle = ServerHandle::new(state.clone());
    let reading = async {
        let mut ticks = watch_ticks();
        loop {
            ticks.tick().await;
            tell(&handle.renew_rules().await);
        }
    };
    tokio::join!(watching, reading);
}

fn watch_ticks() -> tokio::time::Interval {
    let mut ticks = tokio::time::interval(WATCH_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    ticks
}
