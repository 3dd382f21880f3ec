//! Why a startpoint can't be made or read, and why a right allows nothing.

use exoskel_identity::PeerText;
use exoskel_identity::authorization::PatternProblem;
use thiserror::Error;

use super::caveat::date;
use super::{CAVEATS_MAX, REVOKED_MAX};
use crate::error::CodecError;
use crate::protection::Protection;

/// What is wrong with a startpoint or a right. No message holds a tag, a proof or a startpoint's text.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CapabilityError {
    /// The text is something else.
    #[error("this is not a startpoint: its text begins with exo://")]
    NotAStartpoint,
    /// A character or a length that the text can't have.
    #[error(
        "the startpoint is damaged: its text can't be read at byte {place}; copy it again, whole and without spaces"
    )]
    BadCharacter {
        /// Where, counted from 0.
        place: usize,
    },
    /// The checksum doesn't fit.
    #[error(
        "the startpoint is damaged: its checksum does not fit; copy it again, from its first to its last character"
    )]
    Damaged,
    /// Made by a later version.
    #[error("got a startpoint of version {got}, expected 1: update this side's software")]
    Version {
        /// The version.
        got: u8,
    },
    /// The bytes don't form what they should, or are over a limit.
    #[error("the startpoint or right is malformed: {0}")]
    Malformed(#[from] CodecError),
    /// A restriction that this version doesn't know.
    #[error("got a caveat of kind {got}, which is unknown here: update this side's software")]
    UnknownCaveat {
        /// Its kind.
        got: u8,
    },
    /// A holder's pattern can't be meant as one.
    #[error("{pattern} is no pattern of holders: {problem}")]
    Pattern {
        /// As it was written.
        pattern: PeerText,
        /// What is wrong.
        problem: PatternProblem,
    },
    /// A startpoint for nobody.
    #[error(
        "the startpoint names no holder: say for whom it is, such as \"*.example.org\", or make it a bearer's"
    )]
    NoHolder,
    /// Too many restrictions.
    #[error(
        "the startpoint has too many caveats, expected at most {CAVEATS_MAX}: ask its owner for a new one"
    )]
    TooManyCaveats,
    /// Too many revocations.
    #[error(
        "{REVOKED_MAX} startpoints of this endpoint are revoked already, which is the most: give the endpoint a new key, \
         which revokes all"
    )]
    TooManyRevoked,
    /// The endpoint has another key by now, or never had this one.
    #[error(
        "the right is not of the key that endpoint {endpoint} has: it has been started again; ask its owner for a new startpoint"
    )]
    OtherKey {
        /// The endpoint.
        endpoint: PeerText,
    },
    /// The proof doesn't hold.
    #[error(
        "the right is forged, altered, or of another endpoint, link or session; ask the endpoint's owner for a startpoint"
    )]
    Forged,
    /// The owner took it back.
    #[error("startpoint {number} was revoked by its owner; ask for a new one")]
    Revoked {
        /// Its number.
        number: u64,
    },
    /// Its time is over.
    #[error("the startpoint expired on {}, now is {}: ask its owner for a new one", date(*.at), date(*.now))]
    Expired {
        /// When it ended.
        at: u64,
        /// When it was shown.
        now: u64,
    },
    /// Somebody else's.
    #[error(
        "the startpoint is not for {holder}: it is for {patterns}; ask its owner for one of your own"
    )]
    NotForHolder {
        /// Who showed it.
        holder: PeerText,
        /// Whom it is for: patterns, fit for people.
        patterns: String,
    },
    /// The link is too weak.
    #[error("the startpoint needs a link that is at least {expected}, got {got}")]
    NeedsProtection {
        /// What the link has.
        got: Protection,
        /// What it needs.
        expected: Protection,
    },
    /// The link is too weak for a startpoint that serves whoever holds it.
    #[error(
        "a bearer's startpoint needs a link that is encrypted, got {got}: ask for an encrypted link, or for a startpoint \
         that names its holder"
    )]
    BearerNeedsEncrypted {
        /// What the link has.
        got: Protection,
    },
    /// The caveats leave nothing to call.
    #[error("the startpoint's caveats have no handler in common, so that it allows nothing")]
    NoHandlerLeft,
}
