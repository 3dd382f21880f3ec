//! The revocation lists of a trust directory that count: those that an authority there has signed.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::authority::{Authority, AuthorityKind};
use super::bad_file::{BadFile, BadFileReason};
use super::coverage::Coverage;
use super::file::{Content, Kept};
use crate::distinguished_name::NameKey;
use crate::peer_text::PeerText;
use crate::signature::SignatureFault;
use crate::x509::KeyUsage;

/// Puts what was there before in the place of lists that none of their authorities signed.
pub(super) fn replace_forged(
    files: &mut BTreeMap<String, Arc<Kept>>,
    previous: Option<&BTreeMap<String, Arc<Kept>>>,
    authorities: &[Authority],
    by_name: &HashMap<NameKey, Vec<usize>>,
    bad: &mut Vec<BadFile>,
) {
    let mut forged = Vec::new();
    for (name, kept) in files.iter() {
        if let Content::RevocationList(coverage) = &kept.content
            && let Some(reason) = fault(coverage, authorities, by_name)
        {
            forged.push((name.clone(), reason));
        }
    }
    for (name, reason) in forged {
        let before = previous
            .and_then(|files| files.get(&name))
            .filter(|before| match &before.content {
                Content::RevocationList(coverage) => {
                    fault(coverage, authorities, by_name).is_none()
                }
                _ => false,
            });
        match before {
            Some(before) => files.insert(name.clone(), Arc::clone(before)),
            None => files.remove(&name),
        };
        bad.push(BadFile {
            name,
            reason,
            kept_previous: before.is_some(),
        });
    }
}

/// Why a list is none of the authorities that have its issuer's name. A list without such an authority here waits for
/// an intermediate that a peer presents.
fn fault(
    coverage: &Coverage,
    authorities: &[Authority],
    by_name: &HashMap<NameKey, Vec<usize>>,
) -> Option<BadFileReason> {
    let candidates = by_name.get(&coverage.list.issuer.key())?;
    let issuer = || PeerText::new(&coverage.list.issuer.slash());
    let mut reason = None;
    for &index in candidates {
        let Authority {
            certificate, kind, ..
        } = &authorities[index];
        if *kind == AuthorityKind::Unusable || !certificate.allows(KeyUsage::RevocationListSigning)
        {
            continue;
        }
        match coverage.signed_by(&certificate.key) {
            Ok(()) => return None,
            Err(SignatureFault::Weak) => {
                reason = Some(BadFileReason::WeakList {
                    issuer: issuer(),
                    algorithm: coverage.list.signature_algorithm().to_string(),
                });
            }
            Err(SignatureFault::Wrong) => {}
        }
    }
    Some(reason.unwrap_or_else(|| BadFileReason::ForgedList { issuer: issuer() }))
}

/// The lists by issuer, the newest first. Numbers only ever grow; an issuer's clock can go back.
pub(super) fn collect(files: &BTreeMap<String, Arc<Kept>>) -> HashMap<NameKey, Vec<Arc<Coverage>>> {
    let mut lists: HashMap<NameKey, Vec<Arc<Coverage>>> = HashMap::new();
    for kept in files.values() {
        if let Content::RevocationList(coverage) = &kept.content {
            let of_issuer = lists.entry(coverage.list.issuer.key()).or_default();
            // Two names of one file.
            if !of_issuer.iter().any(|one| Arc::ptr_eq(one, coverage)) {
                of_issuer.push(Arc::clone(coverage));
            }
        }
    }
    for of_issuer in lists.values_mut() {
        of_issuer.sort_by_key(|one| std::cmp::Reverse((one.list.number, one.list.this_update)));
    }
    lists
}
