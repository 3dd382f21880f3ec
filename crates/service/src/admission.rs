//! Who may come in: one verdict for each connection.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use exoskel_identity::authorization::Decision;
use exoskel_identity::{
    Authorization, CertificateDetails, DecisionCacheStatistics, IdentityError, ListFault,
    VerifiedIdentity, hex,
};
use exoskel_trust::{Renewal, Rules};
use rustls::time_provider::TimeProvider;
use rustls_pki_types::{CertificateDer, UnixTime};

use crate::audit::{Audit, AuditLine, Verdict};
use crate::limits::CLAIMED_CERTIFICATES_MAX;
use crate::metrics::RefusalCause;
use crate::renewable::{Renewable, RevocationListDates};
use crate::rule_notes::{names_that_nobody_has, similar_action};
use crate::settings::Settings;

/// The action that a connection as such asks for.
pub(crate) const CONNECT: &str = "connect";

/// Judges chains for one server.
pub(crate) struct AdmissionControl {
    verifier: Arc<dyn Renewable>,
    rules: Option<Arc<Rules>>,
    /// What requests need beside [`CONNECT`].
    actions: Vec<String>,
    server_certificates: bool,
    noted: Mutex<Option<NotedNames>>,
}

/// What was found about the names in some rules.
struct NotedNames {
    rules: Arc<Authorization>,
    /// That of the trust data.
    generation: u64,
    notes: Vec<String>,
}

/// Why rules allow an action to nobody, with the line of the policy if one is to blame; nothing when they allow it to somebody.
pub(crate) fn nobody_may(rules: &Authorization, action: &str) -> Option<String> {
    if !rules.allows_somebody(action) {
        let similar = similar_action(rules, action).unwrap_or_default();
        return Some(format!(
            "no [[allow.rule]] of the policy is about it{similar}"
        ));
    }
    let line = rules.denied_to_everybody(action)?;
    Some(format!(
        "the [[deny.rule]] at line {line} of the policy denies it to everybody"
    ))
}

impl AdmissionControl {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            verifier: settings.verifier.clone(),
            rules: settings.rules.clone(),
            actions: settings.actions.clone(),
            server_certificates: settings.server_certificates,
            noted: Mutex::default(),
        }
    }

    /// Judges a chain as it was presented, leaf first, and asks the rules whether its owner may come in.
    pub(crate) fn judge(
        &self,
        chain: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<VerifiedIdentity, Box<Refused>> {
        let identity = self
            .verifier
            .judge(chain, now)
            .map_err(|error| Box::new(Refused::chain(error, chain)))?;
        if let Some(unfit) = identity
            .unfit_for_clients()
            .filter(|_| !self.server_certificates)
        {
            return Err(Box::new(Refused {
                reason: format!(
                    "{unfit}: expected the extended key usage clientAuth: ask the authority for it, or set trust.server_certificates"
                ),
                who: Who::Proven(identity),
                cause: RefusalCause::Usage,
            }));
        }
        if let Some(rules) = &self.rules {
            let decision = rules.current().decide(&identity, CONNECT);
            if !decision.allowed {
                return Err(Box::new(Refused {
                    cause: match decision.is_ban {
                        true => RefusalCause::Banned,
                        false => RefusalCause::Rules,
                    },
                    reason: decision.reason,
                    who: Who::Proven(identity),
                }));
            }
        }
        Ok(identity)
    }

    /// Whether the rules allow somebody an action. Without rules nobody is allowed any.
    pub(crate) fn decide(&self, who: &VerifiedIdentity, action: &str) -> Decision {
        match self.authorization() {
            Some(rules) => rules.decide(who, action),
            None => Authorization::default().decide(who, action),
        }
    }

    /// The local account of somebody.
    pub(crate) fn account(&self, who: &VerifiedIdentity) -> Option<String> {
        self.authorization()?.account(who).map(str::to_owned)
    }

    /// The rules as they are now, if there are any.
    pub(crate) fn authorization(&self) -> Option<Arc<Authorization>> {
        Some(self.rules.as_ref()?.current())
    }

    /// The lists of authorities, as they were read last.
    pub(crate) fn revocation_lists(&self) -> Vec<RevocationListDates> {
        self.verifier.revocation_lists()
    }

    pub(crate) fn generation(&self) -> u64 {
        self.verifier.generation()
    }

    pub(crate) fn statistics(&self) -> Option<DecisionCacheStatistics> {
        self.verifier.statistics()
    }

    /// Reads trust data and rules again.
    pub(crate) fn renew(&self) -> Renewal {
        let mut renewal = self.verifier.renew();
        if let Some(rules) = self.renew_rules() {
            renewal.changed |= rules.changed;
            renewal.changes.extend(rules.changes);
        }
        // The watch on the rules may have said it, and who asks now is to hear it too.
        renewal
            .faults
            .extend(self.rules.as_ref().and_then(|rules| rules.fault()));
        renewal
    }

    /// The lists that don't count at that time, so that people are refused.
    pub(crate) fn list_faults(&self, now: UnixTime) -> Vec<ListFault> {
        self.verifier.list_faults(now)
    }

    /// What rules are in force that nobody may have meant: that let nobody in or nobody do what requests need, or that are about names that
    /// nobody can have.
    pub(crate) fn warnings_of_rules(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(rules) = self.authorization() {
            let needed = std::iter::once(CONNECT).chain(self.actions.iter().map(String::as_str));
            let nobody = needed.filter_map(|action| Some((action, nobody_may(&rules, action)?)));
            warnings.extend(nobody.map(|(action, reason)| {
                format!("nobody may do {action:?} by the rules in force: {reason}")
            }));
        }
        if let Some(rules) = &self.rules {
            warnings.extend(self.notes_on_names(rules));
        }
        warnings
    }

    /// Looks at long lists only when they, or those who may sign names, have changed.
    fn notes_on_names(&self, rules: &Rules) -> Vec<String> {
        let (current, generation) = (rules.current(), self.verifier.generation());
        let mut known = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        match &*known {
            Some(noted)
                if Arc::ptr_eq(&noted.rules, &current) && noted.generation == generation =>
            {
                noted.notes.clone()
            }
            _ => {
                let notes = names_that_nobody_has(rules, &*self.verifier);
                *known = Some(NotedNames {
                    rules: current,
                    generation,
                    notes: notes.clone(),
                });
                notes
            }
        }
    }

    /// Reads the rules again if they have changed; nothing where there are none.
    pub(crate) fn renew_rules(&self) -> Option<Renewal> {
        Some(self.rules.as_ref()?.renew())
    }

    pub(crate) fn has_rules(&self) -> bool {
        self.rules.is_some()
    }
}

impl fmt::Debug for AdmissionControl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AdmissionControl")
            .finish_non_exhaustive()
    }
}

/// Says what one client may do by a server's rules, for as long as anybody asks.
#[derive(Clone, Debug)]
pub struct Authorizer {
    pub(crate) admission: Arc<AdmissionControl>,
    /// Asking keeps nothing of a server alive that has stopped.
    pub(crate) audit: Weak<Audit>,
    pub(crate) time: Arc<dyn TimeProvider>,
    pub(crate) identity: VerifiedIdentity,
    pub(crate) address: SocketAddr,
}

impl Authorizer {
    /// Whether the rules allow the client an action now. The decision has a line in the audit trail, so it waits for the disk.
    ///
    /// # Panics
    /// On a thread of an asynchronous runtime: there, ask the [`Peer`](crate::Peer).
    pub fn decide(&self, action: &str) -> Decision {
        let decision = self.admission.decide(&self.identity, action);
        let now = self.time.current_time();
        if let (Some(audit), Some(now)) = (self.audit.upgrade(), now) {
            let verdict = match decision.allowed {
                true => Verdict::Accepted,
                false => Verdict::Refused,
            };
            let (who, reason) = (&self.identity, &decision.reason);
            let line = AuditLine::identified(who, self.address, now, action, verdict, reason);
            audit.record_waiting(&line);
        }
        decision
    }

    /// The local account of the client, by the rules as they are now.
    pub fn account(&self) -> Option<String> {
        self.admission.account(&self.identity)
    }
}

/// A client that may not come in.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) reason: String,
    pub(crate) cause: RefusalCause,
    pub(crate) who: Who,
}

/// Whom a refusal concerns.
#[derive(Debug)]
pub(crate) enum Who {
    /// The identity is good, the rules say no.
    Proven(VerifiedIdentity),
    /// There is a fault in the chain. Nothing of what it says is proven.
    Claimed {
        error: IdentityError,
        subject: Option<String>,
        serials: Vec<String>,
    },
}

impl Refused {
    /// A client that shows no certificate at all.
    pub(crate) fn without_certificate() -> Self {
        Self::chain(IdentityError::NoCertificate, &[])
    }

    /// What its client is told by an answer. The audit trail has all of it; of a fault of the chain a stranger needs the kind.
    pub(crate) fn told(&self) -> &str {
        let Who::Claimed { error, .. } = &self.who else {
            return &self.reason;
        };
        match error {
            IdentityError::Expired { .. } => {
                "your certificate or proxy has expired: make a new one"
            }
            IdentityError::NotYetValid { .. } => {
                "your certificate or proxy is not valid yet: check the clock of your host"
            }
            IdentityError::Revoked { .. } => "your certificate is revoked",
            IdentityError::UnknownAuthority { .. } => {
                "your certificate comes from no authority that this service trusts"
            }
            IdentityError::NoRevocationList { .. }
            | IdentityError::RevocationListStale { .. }
            | IdentityError::RevocationListForged { .. }
            | IdentityError::RevocationListFromFuture { .. } => {
                "this service can't tell now whether your certificate is revoked: its administrators must act"
            }
            _ => "your certificates were refused: the audit trail of this service says why",
        }
    }

    /// A client that shows somebody's chain and does not hold the leaf's key.
    pub(crate) fn without_key(identity: &VerifiedIdentity) -> Self {
        Self {
            reason: "the client did not prove that it holds the key of its certificate".to_owned(),
            cause: RefusalCause::Key,
            ..Self::chain(IdentityError::NoCertificate, identity.chain())
        }
    }

    fn chain(error: IdentityError, chain: &[CertificateDer<'_>]) -> Self {
        let mut serials = Vec::new();
        let mut subject = None;
        for certificate in chain.iter().take(CLAIMED_CERTIFICATES_MAX) {
            let Ok(details) = CertificateDetails::read(certificate) else {
                break;
            };
            subject.get_or_insert_with(|| details.subject.unquoted());
            serials.push(hex(&details.serial));
        }
        Self {
            reason: error.to_string(),
            cause: RefusalCause::of(&error),
            who: Who::Claimed {
                error,
                subject,
                serials,
            },
        }
    }
}

/// Whether a client may go on by a later verdict. Who is served by what was proven once, an attribute for example, is not
/// to be when it is proven no longer: they have to come again.
pub(crate) fn still_good<'a>(
    before: &VerifiedIdentity,
    again: &'a Result<VerifiedIdentity, Box<Refused>>,
) -> Result<&'a VerifiedIdentity, &'a str> {
    match again {
        Ok(again) if before.says_the_same_as(again) => Ok(again),
        Ok(_) => Err("other attributes count now than when the connection began"),
        Err(refused) => Err(&refused.reason),
    }
}
