//! A whole process around a server, which signals steer.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::configuration::{Configuration, ConfigurationError};
use crate::descriptors::{descriptors_note, raise_descriptors};
use crate::peer::Handler;
use crate::server::Server;
use crate::settings::StartError;

/// Why a process came to its end before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// What the administrator wrote.
    #[error(transparent)]
    Configuration(#[from] ConfigurationError),
    /// The server.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Signals or the address for metrics.
    #[error("{what}: {reason}")]
    System {
        /// What was asked of the system.
        what: &'static str,
        /// What it says.
        reason: io::Error,
    },
}

/// Runs a service as the configuration has it, until SIGTERM or SIGINT. SIGHUP reads trust, rules and host certificate
/// again, and reopens the audit file. `listening` is told the address once clients can connect.
///
/// # Errors
/// [`ProcessError`] says what the administrator must change.
pub async fn run(
    configuration: &Configuration,
    handler: impl Handler,
    listening: impl FnOnce(SocketAddr),
) -> Result<(), ProcessError> {
    let system = |what| move |reason| ProcessError::System { what, reason };
    report_to_standard_error();
    raise_descriptors();
    let settings = configuration.settings()?;
    if let Some(note) = descriptors_note(&settings.limits) {
        tracing::warn!("{note}");
    }
    let server = Server::bind(settings)?;
    let handle = server.handle();
    let monitor = match configuration.monitor {
        Some(address) => Some(
            TcpListener::bind(address)
                .await
                .map_err(system("can't listen for metrics"))?,
        ),
        None => None,
    };
    let mut terminate = signal(SignalKind::terminate()).map_err(system("SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(system("SIGINT"))?;
    let hangup = signal(SignalKind::hangup()).map_err(system("SIGHUP"))?;
    let interval = configuration.interval()?;
    let stopping = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = handle.stopping() => {}
        }
        handle.stop();
    };
    listening(
        server
            .address()
            .map_err(system("can't tell where it listens"))?,
    );
    let monitoring = async {
        match monitor {
            Some(listener) => handle.monitor(listener).await,
            None => Ok(()),
        }
    };
    let mut asked = signal(SignalKind::hangup()).map_err(system("SIGHUP"))?;
    let looking = async {
        loop {
            tokio::select! {
                () = handle.stopping() => return,
                _ = asked.recv() => {}
            }
            if let Some(file) = configuration.changed_file() {
                let file = file.display();
                tracing::warn!(
                    "{file} has changed, and is read at the start only: restart to use it"
                );
            }
        }
    };
    let (served, (), (), (), _) = tokio::join!(
        server.run(handler),
        stopping,
        handle.keep_current(interval, hangup),
        looking,
        monitoring,
    );
    Ok(served?)
}

/// Warnings and errors reach the administrator by the standard error stream, unless whoever embeds this has chosen
/// another way.
fn report_to_standard_error() {
    let _ = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        .with_max_level(tracing::Level::INFO)
        .with_target(false)
        .try_init();
}
