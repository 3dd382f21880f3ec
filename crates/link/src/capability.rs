//! Capabilities: startpoints that can be copied, narrowed and passed on, and the rights that they prove.
//!
//! A [`Startpoint`] is bytes: whom to expect, where to look, an endpoint, [`Caveat`]s, and a tag. The tag is the end of a chain of
//! HMACs that begins at the endpoint's [`RootKey`]. Whoever holds a startpoint can add a caveat and go on with the chain;
//! nobody can go back. The holder shows a [`Right`]: the caveats, and a proof of possession that is made for one link of
//! one session. The tag itself never travels in a session. `docs/protocol.md` describes all of it under "Startpoints".

mod caveat;
mod chain;
mod conditions;
mod error;
mod right;
mod root_key;
mod startpoint;

pub use self::caveat::Caveat;
pub use self::conditions::Allowance;
pub use self::error::CapabilityError;
pub use self::right::Right;
pub use self::root_key::{NewStartpoint, Presentation, RootKey};
pub use self::startpoint::Startpoint;

use self::chain::TAG_BYTES;
use crate::control::NAME_BYTES_MAX;

/// The bytes of the random number that names an endpoint's key.
pub const KEY_ID_BYTES: usize = 16;
/// The most caveats of one startpoint. Each one who passes a startpoint on adds one or two.
pub const CAVEATS_MAX: usize = 16;
/// The most bytes of all caveats of one startpoint, encoded: a right fits into a control record.
pub const CAVEAT_BYTES_MAX: usize = 4096;
/// The most holders of which one caveat lets in any.
pub const HOLDERS_MAX: usize = 64;
/// The most hints of one startpoint. Each one may cost who dials an attempt.
pub const HINTS_MAX: usize = 8;
/// The longest hint: an address with a host name of 253 bytes.
pub const HINT_BYTES_MAX: usize = 300;
/// The most startpoints that one key remembers as revoked. A new key revokes all.
pub const REVOKED_MAX: usize = 65_536;

/// Key id, number, whether it is a bearer's, and the caveats with their count.
const CONDITIONS_BYTES_MAX: usize = KEY_ID_BYTES + 8 + 1 + 1 + CAVEAT_BYTES_MAX;
/// The most bytes of a right.
pub const RIGHT_BYTES_MAX: usize = CONDITIONS_BYTES_MAX + TAG_BYTES;
/// The most bytes of a startpoint: version, role and name, hints, endpoint, conditions, tag.
pub const STARTPOINT_BYTES_MAX: usize = 1
    + (1 + 2 + exoskel_identity::limits::SUBJECT_BYTES_MAX)
    + (1 + HINTS_MAX * (2 + HINT_BYTES_MAX))
    + (2 + NAME_BYTES_MAX)
    + CONDITIONS_BYTES_MAX
    + TAG_BYTES;
