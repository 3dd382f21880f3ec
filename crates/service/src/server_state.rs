//! What all tasks of a server share.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use exoskel_identity::{CertificateDetails, Date, ListFault};
use rustls::crypto::CryptoProvider;
use rustls::sign::CertifiedKey;
use rustls::time_provider::TimeProvider;
use rustls_pki_types::UnixTime;
use tokio::sync::{Semaphore, watch};

use crate::access_log::AccessLog;
use crate::admission::AdmissionControl;
use crate::audit::Audit;
use crate::balancers::Balancer;
use crate::connections::Connections;
use crate::host::{HostCredential, HostCredentialError, out_of_date};
use crate::limits::UNREAD_BODIES_MAX;
use crate::metrics::Metrics;
use crate::request_slots::{RequestSlots, Shares};
use crate::settings::Settings;
use crate::tls::provider;

/// What a server's tasks share.
pub(crate) struct ServerState {
    pub(crate) connections: Arc<Connections>,
    pub(crate) admission: Arc<AdmissionControl>,
    pub(crate) host: HostCertificate,
    renewing: Mutex<SaidWarnings>,
    /// Grows with each change after which everybody is judged again.
    epoch: watch::Sender<u64>,
    pub(crate) request_slots: RequestSlots,
    /// Places for connections of strangers.
    pub(crate) strangers: Arc<Semaphore>,
    /// What one host has of them: half, so that nobody alone keeps all others out.
    pub(crate) stranger_shares: Shares,
    /// Places for bodies whose rest nobody reads.
    pub(crate) unread_bodies: Arc<Semaphore>,
    pub(crate) audit: Arc<Audit>,
    pub(crate) access_log: Arc<AccessLog>,
    pub(crate) balancers: Vec<Balancer>,
    pub(crate) time: Arc<dyn TimeProvider>,
    pub(crate) stopping: watch::Sender<bool>,
}

/// What the last renewal had to warn of, so that nothing is said at each.
#[derive(Debug, Default)]
pub(crate) struct SaidWarnings {
    pub(crate) lists: Vec<ListFault>,
    pub(crate) others: Vec<String>,
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
        let admission = AdmissionControl::new(settings);
        Ok(Arc::new(Self {
            connections: Arc::new(Connections::new(settings.limits.clone(), metrics)),
            admission: Arc::new(admission),
            host: HostCertificate {
                files: settings.host.clone(),
                provider,
                current: Arc::new(ArcSwap::new(host)),
            },
            renewing: Mutex::default(),
            epoch: watch::Sender::new(0),
            request_slots: RequestSlots::new(&settings.limits),
            strangers: Arc::new(Semaphore::new(
                settings.limits.strangers_max.min(Semaphore::MAX_PERMITS),
            )),
            stranger_shares: Shares::new(settings.limits.strangers_max.div_ceil(2)),
            unread_bodies: Arc::new(Semaphore::new(UNREAD_BODIES_MAX)),
            audit: settings.audit.clone(),
            access_log: settings.access_log.clone(),
            balancers: settings.balancers.clone(),
            time: settings.time.clone(),
            stopping: watch::Sender::new(false),
        }))
    }

    /// Reads the host's certificate again; says what is new about it.
    pub(crate) fn renew_host(&self) -> Result<Option<String>, HostCredentialError> {
        let new = self.host.files.load(&self.host.provider)?;
        if new.cert == self.host.current.load().cert {
            return Ok(None);
        }
        let end = end_of(&new).map_or_else(String::new, |end| format!(", ends {}", Date(end)));
        self.host.current.store(new);
        let file = self.host.files.certificate.display();
        Ok(Some(format!("host certificate {file} is new{end}")))
    }

    /// Why clients refuse the certificate that the host shows; nothing while it is in date.
    pub(crate) fn host_warning(&self, now: UnixTime) -> Option<String> {
        let shown = self.host.current.load();
        let details = CertificateDetails::read(shown.cert.first()?).ok()?;
        let problem = out_of_date(&details, now)?;
        let file = self.host.files.certificate.display();
        Some(format!("host certificate {file} {problem}"))
    }

    /// When the certificate ends that the host shows.
    pub(crate) fn host_end(&self) -> Option<UnixTime> {
        end_of(&self.host.current.load())
    }

    /// Waits until the server is told to stop.
    pub(crate) async fn stopping(&self) {
        let mut stopping = self.stopping.subscribe();
        // The sender lives as long as this does, so there is no error.
        let _ = stopping.wait_for(|stopping| *stopping).await;
    }

    /// Whether connections from this address begin with a header of the PROXY protocol.
    pub(crate) fn is_balancer(&self, address: IpAddr) -> bool {
        self.balancers.iter().any(|one| one.is_at(address))
    }

    pub(crate) fn epoch(&self) -> u64 {
        *self.epoch.borrow()
    }

    /// Tells of each epoch that begins from now on.
    pub(crate) fn epochs(&self) -> watch::Receiver<u64> {
        self.epoch.subscribe()
    }

    /// A verdict of an earlier epoch counts no longer.
    pub(crate) fn begin_epoch(&self) {
        self.epoch.send_modify(|epoch| *epoch += 1);
    }

    /// Held by the one who renews.
    pub(crate) fn renewing(&self) -> MutexGuard<'_, SaidWarnings> {
        self.renewing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> UnixTime {
        // A host without a calendar trusts nobody: everything has expired by then.
        self.time
            .current_time()
            .unwrap_or_else(|| UnixTime::since_unix_epoch(std::time::Duration::from_secs(u64::MAX)))
    }
}

fn end_of(key: &CertifiedKey) -> Option<UnixTime> {
    let details = CertificateDetails::read(key.cert.first()?).ok()?;
    Some(details.not_after)
}
