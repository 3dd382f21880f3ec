//! Role and name of a grid certificate on our own links.

use super::path::JudgedPath;
use crate::claim::ClaimError;
use crate::claim::{Identity, Role};
use crate::distinguished_name::DistinguishedName;
use crate::error::IdentityError;
use crate::peer_text::PeerText;
use crate::verified::Expected;
use crate::which_certificate::WhichCertificate;
use crate::x509::{AlternativeName, Certificate, Purposes};

/// The roles that somebody of a grid may have, by their name: of a host, or a distinguished name.
pub(crate) fn roles_of(name: &str) -> &'static [Role] {
    match name.starts_with('/') {
        true => &Role::OF_PERSONS,
        false => &Role::OF_HOSTS,
    }
}

/// What a judged chain may be called.
pub(super) enum Names {
    /// A host, by its DNS names in small letters; at least one.
    Host {
        certificate: WhichCertificate,
        names: Vec<String>,
    },
    /// Anybody else, by the slash form of the subject.
    Person {
        certificate: WhichCertificate,
        subject: String,
    },
}

impl Names {
    pub(super) fn of(path: &JudgedPath) -> Self {
        Self::of_leaf(
            path.leaf(),
            path.subject(),
            path.proxy.is_some(),
            path.purposes,
        )
    }

    /// The names of a leaf whose holder acts as `subject`, and who may be what `purposes` allow.
    pub(super) fn of_leaf(
        leaf: &Certificate,
        subject: &DistinguishedName,
        is_proxy: bool,
        purposes: Purposes,
    ) -> Self {
        let certificate = WhichCertificate {
            position: Some(0),
            subject: PeerText::new(&leaf.subject.slash()),
        };
        let extensions = &leaf.extensions;
        if !is_proxy && purposes.server {
            let names: Vec<_> = extensions
                .alternative_names
                .iter()
                .flatten()
                .filter_map(|name| match name {
                    // A dot at the end would make it another name, which no rule that denies would know.
                    AlternativeName::Dns(name) => {
                        Some(name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase())
                    }
                    _ => None,
                })
                .collect();
            if !names.is_empty() {
                return Self::Host { certificate, names };
            }
        }
        Self::Person {
            certificate,
            subject: subject.slash(),
        }
    }

    /// The identity where nobody expects another one.
    pub(super) fn identity(&self) -> Result<Identity, IdentityError> {
        self.as_role(self.roles()[0], None)
    }

    /// The identity that fits best what is expected: a certificate may stand for several roles, and that of a host for each of its
    /// names. Of several expected roles, the peer's own statement decides later: see
    /// [`VerifiedIdentity::in_role`](crate::VerifiedIdentity::in_role).
    pub(super) fn identity_for(&self, expected: &Expected<'_>) -> Result<Identity, IdentityError> {
        let roles = self.roles();
        let fitting = roles.iter().find(|role| expected.roles.contains(role));
        self.as_role(*fitting.unwrap_or(&roles[0]), expected.name)
    }

    fn roles(&self) -> &'static [Role] {
        match self {
            Self::Person { .. } => &Role::OF_PERSONS,
            Self::Host { .. } => &Role::OF_HOSTS,
        }
    }

    fn as_role(&self, role: Role, name: Option<&str>) -> Result<Identity, IdentityError> {
        match self {
            Self::Person {
                certificate,
                subject,
            } => Identity::of_subject(role, subject).map_err(|reason| claim(certificate, reason)),
            Self::Host { certificate, names } => {
                let wanted = name
                    .and_then(|wanted| names.iter().find(|name| name.eq_ignore_ascii_case(wanted)));
                // A wildcard is no name of ours, since rules match names by patterns; another one will do.
                let first = names.iter().find(|name| !name.contains('*'));
                let name = wanted.or(first).unwrap_or(&names[0]);
                Identity::new(role, name).map_err(|reason| claim(certificate, reason))
            }
        }
    }
}

fn claim(certificate: &WhichCertificate, reason: ClaimError) -> IdentityError {
    IdentityError::Claim {
        certificate: certificate.clone(),
        reason,
    }
}
