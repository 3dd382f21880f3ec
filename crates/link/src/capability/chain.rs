//! The chain of HMACs: from an endpoint's secret to the tag of a startpoint, and to a proof that somebody holds it.

use aws_lc_rs::hmac::{self, HMAC_SHA256};
use zeroize::Zeroizing;

/// The bytes of secrets, tags and proofs.
pub(super) const TAG_BYTES: usize = 32;

/// No label begins another one, so that no tag can pass for a proof, and no proof for a tag.
const FIRST: &[u8] = b"exoskel/1 capability";
const CAVEAT: &[u8] = b"exoskel/1 caveat";
const POSSESSION: &[u8] = b"exoskel/1 possession";
const RULES_SECRET: &[u8] = b"exoskel/1 secret of rules";
const RULES_NAME: &[u8] = b"exoskel/1 name of rules";

/// One member of a chain.
///
/// # Security
/// Whoever holds it has the right of its startpoint. It is never printed and is erased when dropped.
#[derive(Clone)]
pub(super) struct ChainTag(Zeroizing<[u8; TAG_BYTES]>);

impl ChainTag {
    pub(super) fn from_bytes(bytes: [u8; TAG_BYTES]) -> Self {
        Self(Zeroizing::new(bytes))
    }

    /// For the bytes of a startpoint, and nothing else.
    pub(super) fn bytes(&self) -> &[u8; TAG_BYTES] {
        &self.0
    }

    /// The chain's first member: `origin` says of what endpoint, key and number it is.
    pub(super) fn first(secret: &[u8; TAG_BYTES], origin: &[u8]) -> Self {
        Self(authenticate(secret, &[FIRST, origin]))
    }

    /// The next member. Nothing leads from it back to this one.
    #[must_use]
    pub(super) fn narrowed(&self, caveat: &[u8]) -> Self {
        Self(authenticate(&self.0, &[CAVEAT, caveat]))
    }

    /// Shows that somebody holds the tag, on one link of one session.
    pub(super) fn proof(&self, binding: &[u8; TAG_BYTES], link: u32) -> [u8; TAG_BYTES] {
        *authenticate(&self.0, &[POSSESSION, binding, &link.to_be_bytes()])
    }

    /// Whether that is the proof; the time that this takes says nothing about the right one.
    pub(super) fn proves(
        &self,
        binding: &[u8; TAG_BYTES],
        link: u32,
        proof: &[u8; TAG_BYTES],
    ) -> bool {
        let message = [POSSESSION, binding, &link.to_be_bytes()].concat();
        hmac::verify(&hmac::Key::new(HMAC_SHA256, &*self.0), &message, proof).is_ok()
    }
}

/// The secret of an endpoint's second key, of which rules make startpoints, and the number that names it.
pub(super) fn of_rules(secret: &[u8; TAG_BYTES]) -> (Zeroizing<[u8; TAG_BYTES]>, [u8; TAG_BYTES]) {
    let name = authenticate(secret, &[RULES_NAME]);
    (authenticate(secret, &[RULES_SECRET]), *name)
}

fn authenticate(key: &[u8; TAG_BYTES], parts: &[&[u8]]) -> Zeroizing<[u8; TAG_BYTES]> {
    let mut context = hmac::Context::with_key(&hmac::Key::new(HMAC_SHA256, key));
    for part in parts {
        context.update(part);
    }
    let mut tag = Zeroizing::new([0; TAG_BYTES]);
    tag.copy_from_slice(context.sign().as_ref());
    tag
}
