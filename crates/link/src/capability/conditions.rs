//! What a startpoint and the right that it proves have in common.

use std::collections::BTreeSet;

use exoskel_identity::PeerText;

use super::caveat::Caveat;
use super::chain::{ChainTag, TAG_BYTES};
use super::root_key::Presentation;
use super::{CAVEAT_BYTES_MAX, CAVEATS_MAX, CapabilityError, KEY_ID_BYTES};
use crate::codec::{Reader, over, put_text};
use crate::control::NAME_BYTES_MAX;
use crate::error::CodecError;
use crate::protection::Protection;

/// Which startpoint it is, and what takes away from what it allows. All of it stands under the tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conditions {
    pub(super) key_id: [u8; KEY_ID_BYTES],
    pub(super) number: u64,
    pub(super) bearer: bool,
    pub(super) caveats: Vec<Caveat>,
}

/// What a startpoint allows, all its caveats together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The startpoint's number among those of its endpoint's key; all its narrowed copies have the same one.
    pub number: u64,
    /// The handlers that can be called; nothing means all.
    pub handlers: Option<BTreeSet<String>>,
    /// When it ends, in seconds since 1970. A link that rests on it ends then.
    pub expires: Option<u64>,
    /// The protection that a link has at least.
    pub protection: Protection,
}

impl Conditions {
    pub(super) fn put(&self, out: &mut Vec<u8>) -> Result<(), CapabilityError> {
        self.put_origin(out);
        let count = self.caveats.len();
        if count > CAVEATS_MAX {
            return Err(CapabilityError::TooManyCaveats);
        }
        out.push(count as u8);
        let start = out.len();
        for caveat in &self.caveats {
            caveat.put(out)?;
        }
        caveat_bytes(out.len() - start)
    }

    fn put_origin(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.key_id);
        out.extend_from_slice(&self.number.to_be_bytes());
        out.push(self.bearer.into());
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, CapabilityError> {
        let key_id = reader.array("key id")?;
        let number = reader.u64("number")?;
        let bearer = match reader.u8("bearer")? {
            0 => false,
            1 => true,
            other => {
                return Err(CapabilityError::Malformed(CodecError::Unknown {
                    what: "bearer",
                    got: other.into(),
                }));
            }
        };
        let count = usize::from(reader.u8("number of caveats")?);
        if count > CAVEATS_MAX {
            return Err(CapabilityError::TooManyCaveats);
        }
        let start = reader.remaining();
        let mut caveats = Vec::with_capacity(count);
        for _ in 0..count {
            caveats.push(Caveat::read(reader)?);
            caveat_bytes(start - reader.remaining())?;
        }
        Ok(Self {
            key_id,
            number,
            bearer,
            caveats,
        })
    }

    /// The end of the chain that begins at the secret.
    pub(super) fn tag(
        &self,
        secret: &[u8; TAG_BYTES],
        endpoint: &str,
    ) -> Result<ChainTag, CapabilityError> {
        let mut origin = Vec::new();
        put_text(&mut origin, "endpoint name", endpoint, NAME_BYTES_MAX)?;
        self.put_origin(&mut origin);
        let mut tag = ChainTag::first(secret, &origin);
        for caveat in &self.caveats {
            let mut encoded = Vec::new();
            caveat.put(&mut encoded)?;
            tag = tag.narrowed(&encoded);
        }
        Ok(tag)
    }

    pub(super) fn allowance(&self) -> Allowance {
        let mut allowance = Allowance {
            number: self.number,
            handlers: None,
            expires: None,
            protection: Protection::Plain,
        };
        for caveat in &self.caveats {
            match caveat {
                Caveat::Handlers(only) => match &mut allowance.handlers {
                    Some(handlers) => handlers.retain(|name| only.contains(name)),
                    none => *none = Some(only.clone()),
                },
                Caveat::Expires(seconds) => {
                    let earlier = allowance.expires.map_or(*seconds, |one| one.min(*seconds));
                    allowance.expires = Some(earlier);
                }
                Caveat::Protection(protection) => {
                    allowance.protection = allowance.protection.max(*protection);
                }
                Caveat::Holder(_) | Caveat::Holders(_) => {}
            }
        }
        allowance
    }

    pub(super) fn needs(&self, same_host: bool) -> Protection {
        if self.bearer && !same_host {
            return Protection::Encrypted;
        }
        self.allowance().protection
    }

    /// A startpoint that allows nothing helps nobody: who makes one meant something else.
    pub(super) fn check_useful(&self) -> Result<(), CapabilityError> {
        let names_holder = self.caveats.iter().any(Caveat::names_holder);
        if !self.bearer && !names_holder {
            return Err(CapabilityError::NoHolder);
        }
        match self.allowance().handlers {
            Some(handlers) if handlers.is_empty() => Err(CapabilityError::NoHandlerLeft),
            _ => Ok(()),
        }
    }

    /// Holds what a proven right says against who shows it, when, and on what link.
    pub(super) fn check(&self, presented: &Presentation<'_>) -> Result<Allowance, CapabilityError> {
        self.check_useful()?;
        let mut allowance = self.allowance();
        match allowance.expires {
            Some(at) if presented.now_unix >= at => {
                return Err(CapabilityError::Expired {
                    at,
                    now: presented.now_unix,
                });
            }
            _ => {}
        }
        let mut caveats = self.caveats.iter();
        if let Some(caveat) = caveats.find(|caveat| !caveat.lets_in(presented.holder)) {
            return Err(CapabilityError::NotForHolder {
                holder: PeerText::new(presented.holder.name()),
                patterns: caveat.holders_text(PeerText::to_string),
            });
        }
        let got = presented.protection;
        if got < allowance.protection {
            return Err(CapabilityError::NeedsProtection {
                got,
                expected: allowance.protection,
            });
        }
        if self.bearer && !presented.same_host && got < Protection::Encrypted {
            return Err(CapabilityError::BearerNeedsEncrypted { got });
        }
        allowance.protection = got.max(presented.minimum);
        Ok(allowance)
    }
}

fn caveat_bytes(got: usize) -> Result<(), CapabilityError> {
    if got <= CAVEAT_BYTES_MAX {
        return Ok(());
    }
    let limit = CAVEAT_BYTES_MAX as u64;
    Err(over("length of the caveats", got as u64, limit).into())
}
