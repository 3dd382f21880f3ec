//! A certificate as it was presented: which one it is, and whether what it states fits together.

use crate::peer_text::PeerText;
use crate::which_certificate::WhichCertificate;
use crate::x509::{Certificate, KeyUsage};

/// What every certificate of a path must be good for, whoever issued it.
pub(super) fn check_uses(certificate: &Certificate) -> Result<(), &'static str> {
    if !certificate.allows(KeyUsage::DigitalSignature) {
        return Err("key usage for digital signatures");
    }
    if certificate.purposes().allow_neither() {
        return Err("extended key usage for client or server authentication");
    }
    Ok(())
}

pub(super) fn which(presented: &[Certificate], position: usize) -> WhichCertificate {
    WhichCertificate {
        position: Some(position),
        subject: PeerText::new(&presented[position].subject.slash()),
    }
}
