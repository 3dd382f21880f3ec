//! What a startpoint's holder may not do: each caveat takes something away.

use core::fmt;
use core::time::Duration;
use std::collections::BTreeSet;

use exoskel_identity::authorization::IdentityPattern;
use exoskel_identity::limits::PATTERN_BYTES_MAX;
use exoskel_identity::{Date, PeerText, VerifiedIdentity};
use rustls_pki_types::UnixTime;

use super::{CapabilityError, HOLDERS_MAX};
use crate::codec::{Reader, over, put_text};
use crate::control::{HANDLERS_MAX, NAME_BYTES_MAX};
use crate::error::CodecError;
use crate::protection::Protection;

const HANDLERS: u8 = 1;
const EXPIRES: u8 = 2;
const HOLDER: u8 = 3;
const PROTECTION: u8 = 4;
const HOLDERS: u8 = 5;

/// Of a caveat in messages, at most.
const HOLDERS_SHOWN: usize = 8;

/// One restriction. All restrictions of a startpoint hold together, so that adding one never gives more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caveat {
    /// Only these handlers can be called.
    Handlers(BTreeSet<String>),
    /// Good until this time, in seconds since 1970, and not at it.
    Expires(u64),
    /// Only for whom this pattern lets in, as a policy's patterns do.
    Holder(IdentityPattern),
    /// Only for whom at least one of these patterns lets in: two or more.
    Holders(BTreeSet<IdentityPattern>),
    /// Links have at least this protection.
    Protection(Protection),
}

impl Caveat {
    /// Only these handlers.
    pub fn handlers<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        Self::Handlers(names.into_iter().map(str::to_owned).collect())
    }

    /// Only holders that the pattern lets in: a name, a distinguished name or an attribute, perhaps with `*`.
    ///
    /// # Errors
    /// [`CapabilityError::Pattern`] when it can't be meant as one.
    pub fn holder(pattern: &str) -> Result<Self, CapabilityError> {
        pattern_of(pattern).map(Self::Holder)
    }

    /// Only holders that at least one of the patterns lets in. One pattern is a [`Caveat::Holder`]: it has one spelling.
    ///
    /// # Errors
    /// [`CapabilityError::Pattern`] as [`Caveat::holder`]; [`CapabilityError::NoHolder`] without any pattern.
    pub fn holders<'a>(
        patterns: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, CapabilityError> {
        let holders: Result<BTreeSet<_>, _> = patterns.into_iter().map(pattern_of).collect();
        let mut holders = holders?;
        if holders.len() > 1 {
            return Ok(Self::Holders(holders));
        }
        let only = holders.pop_first().ok_or(CapabilityError::NoHolder)?;
        Ok(Self::Holder(only))
    }

    /// Whether the caveat lets this holder in. Those that are about something else let everybody in.
    pub(super) fn lets_in(&self, who: &VerifiedIdentity) -> bool {
        match self {
            Self::Holder(pattern) => pattern.lets_in(who),
            Self::Holders(patterns) => patterns.iter().any(|one| one.lets_in(who)),
            Self::Handlers(_) | Self::Expires(_) | Self::Protection(_) => true,
        }
    }

    /// Whether it says who the holder is.
    pub(super) fn names_holder(&self) -> bool {
        matches!(self, Self::Holder(_) | Self::Holders(_))
    }

    /// The holders that it lets in, each shown so; of many, the first ones.
    pub(super) fn holders_text(&self, shown: fn(&PeerText) -> String) -> String {
        let shown = |pattern: &IdentityPattern| shown(&PeerText::new(&pattern.to_string()));
        match self {
            Self::Holder(pattern) => shown(pattern),
            Self::Holders(patterns) => {
                let mut texts: Vec<_> = patterns.iter().take(HOLDERS_SHOWN).map(shown).collect();
                if let more @ 1.. = patterns.len().saturating_sub(HOLDERS_SHOWN) {
                    texts.push(format!("{more} more"));
                }
                texts.join(" or ")
            }
            Self::Handlers(_) | Self::Expires(_) | Self::Protection(_) => "anybody".to_owned(),
        }
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            Self::Handlers(handlers) => {
                out.extend_from_slice(&[HANDLERS, handler_count(handlers.len())?]);
                for handler in handlers {
                    put_text(out, "handler name", handler, NAME_BYTES_MAX)?;
                }
            }
            Self::Expires(seconds) => {
                out.push(EXPIRES);
                out.extend_from_slice(&seconds.to_be_bytes());
            }
            Self::Holder(pattern) => {
                out.push(HOLDER);
                put_text(out, "holder", &pattern.to_string(), PATTERN_BYTES_MAX)?;
            }
            Self::Holders(patterns) => {
                out.extend_from_slice(&[HOLDERS, holder_count(patterns.len())?]);
                for pattern in patterns {
                    put_text(out, "holder", &pattern.to_string(), PATTERN_BYTES_MAX)?;
                }
            }
            Self::Protection(protection) => out.extend_from_slice(&[PROTECTION, protection.code()]),
        }
        Ok(())
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, CapabilityError> {
        Ok(match reader.u8("caveat")? {
            HANDLERS => Self::Handlers(read_handlers(reader)?),
            EXPIRES => Self::Expires(reader.u64("expiry")?),
            HOLDER => Self::holder(reader.text("holder", PATTERN_BYTES_MAX)?)?,
            PROTECTION => {
                let code = reader.u8("protection")?;
                let unknown = CodecError::Unknown {
                    what: "protection",
                    got: code.into(),
                };
                Self::Protection(Protection::from_code(code).ok_or(unknown)?)
            }
            HOLDERS => Self::Holders(read_holders(reader)?),
            // A restriction that this version doesn't know can't be kept.
            other => return Err(CapabilityError::UnknownCaveat { got: other }),
        })
    }
}

fn pattern_of(text: &str) -> Result<IdentityPattern, CapabilityError> {
    IdentityPattern::parse(text).map_err(|problem| CapabilityError::Pattern {
        pattern: text.into(),
        problem,
    })
}

fn handler_count(count: usize) -> Result<u8, CodecError> {
    match u8::try_from(count) {
        Ok(0) => Err(CodecError::Unknown {
            what: "number of handlers",
            got: 0,
        }),
        Ok(fitting) if count <= HANDLERS_MAX => Ok(fitting),
        _ => Err(over(
            "number of handlers",
            count as u64,
            HANDLERS_MAX as u64,
        )),
    }
}

fn holder_count(count: usize) -> Result<u8, CodecError> {
    match u8::try_from(count) {
        // One holder has a caveat of its own kind.
        Ok(few @ 0..2) => Err(CodecError::Unknown {
            what: "number of holders",
            got: few.into(),
        }),
        Ok(fitting) if count <= HOLDERS_MAX => Ok(fitting),
        _ => Err(over("number of holders", count as u64, HOLDERS_MAX as u64)),
    }
}

/// Patterns in ascending order of their bytes, for the reason of [`read_handlers`].
fn read_holders(reader: &mut Reader<'_>) -> Result<BTreeSet<IdentityPattern>, CapabilityError> {
    let count = holder_count(reader.u8("number of holders")?.into())?;
    let mut holders = BTreeSet::new();
    for _ in 0..count {
        let pattern = pattern_of(reader.text("holder", PATTERN_BYTES_MAX)?)?;
        if holders.last().is_some_and(|last| *last >= pattern) {
            return Err(CapabilityError::Malformed(CodecError::Text {
                what: "list of holders that is out of order",
            }));
        }
        holders.insert(pattern);
    }
    Ok(holders)
}

/// Names in ascending order: a set of handlers has one spelling, or two chains would mean the same.
fn read_handlers(reader: &mut Reader<'_>) -> Result<BTreeSet<String>, CodecError> {
    let count = handler_count(reader.u8("number of handlers")?.into())?;
    let mut handlers = BTreeSet::new();
    for _ in 0..count {
        let name = reader.text("handler name", NAME_BYTES_MAX)?;
        if handlers.last().is_some_and(|last: &String| **last >= *name) {
            return Err(CodecError::Text {
                what: "list of handlers that is out of order",
            });
        }
        handlers.insert(name.to_owned());
    }
    Ok(handlers)
}

/// A time in seconds since 1970, for messages.
pub(super) fn date(seconds: u64) -> Date {
    Date(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
}

impl fmt::Display for Caveat {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handlers(handlers) => {
                let names = handlers.iter().map(|name| PeerText::new(name).unquoted());
                write!(
                    formatter,
                    "handlers {}",
                    names.collect::<Vec<_>>().join(", ")
                )
            }
            Self::Expires(seconds) => write!(formatter, "until {}", date(*seconds)),
            Self::Holder(_) | Self::Holders(_) => {
                write!(formatter, "for {}", self.holders_text(PeerText::unquoted))
            }
            Self::Protection(protection) => write!(formatter, "at least {protection}"),
        }
    }
}
