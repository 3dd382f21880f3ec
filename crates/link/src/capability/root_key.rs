//! The owner's side: the secret that startpoints are made of, and that rights are held against.

use core::fmt;
use std::collections::BTreeSet;

use exoskel_identity::{Identity, VerifiedIdentity};
use zeroize::Zeroizing;

use super::chain::{self, TAG_BYTES};
use super::conditions::Conditions;
use super::{Allowance, CapabilityError, Caveat, KEY_ID_BYTES, REVOKED_MAX, Right, Startpoint};
use crate::codec::put_text;
use crate::control::NAME_BYTES_MAX;
use crate::handshake::ProcessNumber;
use crate::protection::Protection;

/// The secret of an endpoint, which never leaves its process, and what was made of it.
///
/// # Security
/// Whoever holds it can make every startpoint of the endpoint. It is never printed and is erased when dropped. An endpoint
/// that starts again has another one, so that no startpoint outlives the endpoint that it was made for.
pub struct RootKey {
    endpoint: String,
    key_id: [u8; KEY_ID_BYTES],
    secret: Zeroizing<[u8; TAG_BYTES]>,
    issued: u64,
    revoked: BTreeSet<u64>,
}

/// What a new startpoint shall say.
#[derive(Clone, Debug)]
pub struct NewStartpoint {
    /// Whom to expect at the other end: the node that has the endpoint.
    pub node: Identity,
    /// Which process of that node it is.
    pub process: ProcessNumber,
    /// Where that node may be found, the best first. They grant nothing and prove nothing.
    pub hints: Vec<String>,
    /// The endpoint's own minimum protection, which the startpoint inherits.
    pub minimum: Protection,
    /// Whether whoever holds the startpoint has the right. Then it is a secret.
    pub bearer: bool,
    /// What it is restricted to. There is a [`Caveat::Holder`] among them unless it is a bearer's.
    pub caveats: Vec<Caveat>,
}

/// Who shows a right, when, and on what link.
#[derive(Clone, Copy, Debug)]
pub struct Presentation<'a> {
    /// What proofs of this session are made for.
    pub binding: &'a [u8; TAG_BYTES],
    /// The link that is to be opened.
    pub link: u32,
    /// Who proved to be the other end of this session.
    pub holder: &'a VerifiedIdentity,
    /// Seconds since 1970.
    pub now_unix: u64,
    /// The protection that the link is asked for with.
    pub protection: Protection,
    /// The minimum protection of the endpoint now.
    pub minimum: Protection,
    /// Whether the other end is proven to be on this host.
    pub same_host: bool,
}

impl RootKey {
    /// The key of an endpoint. Both numbers must be random and new.
    ///
    /// # Errors
    /// [`CapabilityError::Malformed`] when the endpoint's name can't travel.
    pub fn new(
        endpoint: &str,
        key_id: [u8; KEY_ID_BYTES],
        secret: [u8; TAG_BYTES],
    ) -> Result<Self, CapabilityError> {
        put_text(&mut Vec::new(), "endpoint name", endpoint, NAME_BYTES_MAX)?;
        Ok(Self {
            endpoint: endpoint.to_owned(),
            key_id,
            secret: Zeroizing::new(secret),
            issued: 0,
            revoked: BTreeSet::new(),
        })
    }

    /// The endpoint's second key: of the startpoints that its owner's rules give to whoever asks. Nobody finds one of the two keys by
    /// the other.
    #[must_use]
    pub fn of_rules(&self) -> Self {
        let (secret, name) = chain::of_rules(&self.secret);
        let mut key_id = [0; KEY_ID_BYTES];
        key_id.copy_from_slice(&name[..KEY_ID_BYTES]);
        Self {
            endpoint: self.endpoint.clone(),
            key_id,
            secret,
            issued: 0,
            revoked: BTreeSet::new(),
        }
    }

    /// The endpoint's name.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// The key's name, which stands in every startpoint.
    pub fn key_id(&self) -> &[u8; KEY_ID_BYTES] {
        &self.key_id
    }

    /// Makes a startpoint with a number of its own.
    ///
    /// # Errors
    /// [`CapabilityError`] when it names no holder and is no bearer's, leaves no handler, or is over a limit.
    pub fn issue(&mut self, new: NewStartpoint) -> Result<Startpoint, CapabilityError> {
        let mut caveats = new.caveats;
        if new.minimum > Protection::Plain {
            caveats.insert(0, Caveat::Protection(new.minimum));
        }
        let conditions = Conditions {
            key_id: self.key_id,
            number: self.issued + 1,
            bearer: new.bearer,
            caveats,
        };
        conditions.check_useful()?;
        let tag = conditions.tag(&self.secret, &self.endpoint)?;
        let endpoint = self.endpoint.clone();
        let startpoint =
            Startpoint::new(new.node, new.hints, endpoint, new.process, conditions, tag)?;
        self.issued += 1;
        Ok(startpoint)
    }

    /// Takes back the startpoint of this number, with all its copies. Links that rest on it are for the caller to end.
    ///
    /// # Errors
    /// [`CapabilityError::TooManyRevoked`] when [`REVOKED_MAX`] are revoked already.
    pub fn revoke(&mut self, number: u64) -> Result<(), CapabilityError> {
        if self.revoked.len() >= REVOKED_MAX && !self.revoked.contains(&number) {
            return Err(CapabilityError::TooManyRevoked);
        }
        self.revoked.insert(number);
        Ok(())
    }

    /// Verifies a right and says what it allows.
    ///
    /// # Errors
    /// [`CapabilityError`] says why it allows nothing. Before the proof has held, it says nothing that depends on the secret.
    ///
    /// # Security
    /// The binding must be that of the session on which the right came, and the holder must have been proven in the
    /// same session. An error other than one of those that end reading says to the peer what it claimed itself.
    pub fn verify(
        &self,
        right: &Right,
        presented: &Presentation<'_>,
    ) -> Result<Allowance, CapabilityError> {
        let conditions = &right.conditions;
        if conditions.key_id != self.key_id {
            return Err(CapabilityError::OtherKey {
                endpoint: self.endpoint.as_str().into(),
            });
        }
        let tag = conditions.tag(&self.secret, &self.endpoint)?;
        if !tag.proves(presented.binding, presented.link, &right.proof) {
            return Err(CapabilityError::Forged);
        }
        if self.revoked.contains(&conditions.number) {
            return Err(CapabilityError::Revoked {
                number: conditions.number,
            });
        }
        conditions.check(presented)
    }
}

impl fmt::Debug for RootKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RootKey")
            .field("endpoint", &self.endpoint)
            .field("issued", &self.issued)
            .field("revoked", &self.revoked.len())
            .finish_non_exhaustive()
    }
}
