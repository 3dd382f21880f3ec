//! By which rules a grid's chains are judged.

use thiserror::Error;

use crate::limits::{
    ATTRIBUTE_TARGETS_MAX, CLOCK_SKEW_SECONDS_MAX, POLICY_LANGUAGES_MAX, PROXY_DEPTH_MAX,
};
use crate::peer_text::PeerText;

/// What to do about a certificate whose issuer has no revocation list in the trust directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Revocation {
    /// Refuse it: nobody knows whether it is revoked.
    #[default]
    Require,
    /// Accept it. A list that is there counts as ever, and refuses everybody when it is stale, or when it can't be read and
    /// nothing older is known.
    WhereListed,
}

/// What to do about an authority for which neither a `signing_policy` nor a `namespaces` file says what it may sign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NameSpaces {
    /// Refuse what it signed. An intermediate without a file of its own is bound by its issuer's.
    #[default]
    Require,
    /// Let it sign any name. One whose only file can't be read may sign none.
    WherePresent,
}

/// By which rules a [`GridVerifier`] judges.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GridSettings {
    /// About missing revocation lists.
    pub revocation: Revocation,
    /// About missing `signing_policy` and `namespaces` files.
    pub name_spaces: NameSpaces,
    /// Whether proxies of Globus Toolkit 2 are accepted (`CN=proxy`, no extension). They say nothing about path lengths.
    pub legacy_proxies: bool,
    /// Whether proxies of the draft before RFC 3820 (Globus Toolkit 3) are accepted.
    pub draft_proxies: bool,
    /// How many proxies may stand in a chain; 0 refuses all of them.
    pub proxy_depth_max: usize,
    /// Policy languages of proxies that are accepted besides the known ones, as dotted object identifiers.
    ///
    /// # Security
    /// Such a policy takes rights away in a way that nobody here reads. Allowing its language means that the proxy counts
    /// as a full one.
    pub policy_languages: Vec<String>,
    /// The names of this host that attribute certificates with targets may mean.
    pub attribute_targets: Vec<String>,
    /// By how much other hosts' clocks may be ahead, in seconds: something may have begun that much later than now. Ends
    /// are never stretched.
    pub clock_skew_seconds: u64,
}

impl Default for GridSettings {
    fn default() -> Self {
        Self {
            revocation: Revocation::Require,
            name_spaces: NameSpaces::Require,
            legacy_proxies: false,
            draft_proxies: false,
            proxy_depth_max: 10,
            policy_languages: Vec::new(),
            attribute_targets: Vec::new(),
            clock_skew_seconds: 60,
        }
    }
}

/// A setting that can't be used. Whoever wrote the configuration must act.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SettingsError {
    /// A number beyond its limit.
    #[error("got {got} for {setting}, expected at most {max}")]
    TooLarge {
        /// The field.
        setting: &'static str,
        /// Its value.
        got: u64,
        /// The limit.
        max: u64,
    },
    /// A policy language that is no object identifier.
    #[error(
        "got the policy language {got}, expected a dotted object identifier such as \"1.3.6.1.5.5.7.21.1\""
    )]
    BadLanguage {
        /// What stood there.
        got: PeerText,
    },
}

impl GridSettings {
    /// Whether every value is within its limits.
    ///
    /// # Errors
    /// [`SettingsError`] names the field, its value and the limit.
    pub fn check(&self) -> Result<(), SettingsError> {
        let counts = [
            (
                "proxy_depth_max",
                self.proxy_depth_max as u64,
                PROXY_DEPTH_MAX as u64,
            ),
            (
                "clock_skew_seconds",
                self.clock_skew_seconds,
                CLOCK_SKEW_SECONDS_MAX,
            ),
            (
                "policy_languages",
                self.policy_languages.len() as u64,
                POLICY_LANGUAGES_MAX as u64,
            ),
            (
                "attribute_targets",
                self.attribute_targets.len() as u64,
                ATTRIBUTE_TARGETS_MAX as u64,
            ),
        ];
        for (setting, got, max) in counts {
            if got > max {
                return Err(SettingsError::TooLarge { setting, got, max });
            }
        }
        for language in &self.policy_languages {
            let is_number =
                |arc: &str| !arc.is_empty() && arc.bytes().all(|byte| byte.is_ascii_digit());
            if language.split('.').count() < 3 || !language.split('.').all(is_number) {
                return Err(SettingsError::BadLanguage {
                    got: PeerText::new(language),
                });
            }
        }
        Ok(())
    }
}
