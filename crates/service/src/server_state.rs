//! What all tasks of a server share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;
use tokio::sync::watch;

use crate::admission::AdmissionControl;
use crate::audit::Audit;
use crate::connections::Connections;
use crate::host::{HostCredential, HostCredentialError};
use crate::metrics::Metrics;
use crate::request_slots::RequestSlots;
use crate::settings::Settings;
use crate::tls::provider;

/// What a server's tasks share.
pub(crate) struct ServerState {
    pub(crate) connections: Arc<Connections>,
    pub(crate) admission: Arc<AdmissionControl>,
    pub(crate) host: HostCertificate,
    renewing: Mutex<()>,
    /// Grows with each change after which everybody is judged again.
    epoch: AtomicU64,
    pub(crate) request_slots: RequestSlots,
    pub(crate) audit: Arc<Audit>,
    pub(crate) time: Arc<dyn TimeProvider>,
    pub(crate) stopping: watch::Sender<bool>,
}

/// The host's certificate, as new connections show it.
pub(crate) struct HostCertificate {
    files: HostCredential,
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) current: Arc<ArcSwap<CertifiedKey>>,
}

impl ServerState {
    /// What a server with these settings begins with.
    pub(crate) fn new(settings: &Settings) -> Result<Arc<Self>, HostCredentialError> {
        let provider = provider();
        let host = settings.host.load(&provider)?;
        let metrics = Arc::new(Metrics::default());
        metrics.set_generation(settings.verifier.generation());
        let admission = AdmissionControl::new(
            settings.verifier.clone(),
            settings.rules.clone(),
            settings.server_certificates,
        );
        Ok(Arc::new(Self {
            connections: Arc::new(Connections::new(settings.limits.clone(), metrics)),
            admission: Arc::new(admission),
            host: HostCertificate {
                files: settings.host.clone(),
                provider,
                current: Arc::new(ArcSwap::new(host)),
            },
            renewing: Mutex::default(),
            epoch: AtomicU64::new(0),
            request_slots: RequestSlots::new(&settings.limits),
            audit: settings.audit.clone(),
            time: settings.time.clone(),
            stopping: watch::Sender::new(false),
        }))
    }

    /// Reads the host's certificate again.
    pub(crate) fn renew_host(&self) -> Result<(), HostCredentialError> {
        let new = self.host.files.load(&self.host.provider)?;
        if new.cert != self.host.current.load().cert {
            self.host.current.store(new);
        }
        Ok(())
    }

    /// Waits until the server is told to stop.
    pub(crate) async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this does, so there is no error.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// A verdict of an earlier epoch counts no longer.
    pub(crate) fn begin_epoch(&self) {
        self.epoch.fetch_add(1, Ordering::SeqCst);
    }

    /// Held by the one who renews.
    pub(crate) fn renewing(&self) -> MutexGuard<'_, ()> {
        self.renewing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> UnixTime {
        // A host without a calendar trusts nobody: everything has expired by then.
        self.time
            .current_time()
            .unwrap_or_else(|| UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::MAX)))
    }
}
