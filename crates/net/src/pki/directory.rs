//! A private authority in a folder, in standard formats only, so that other tools can read all of it.
//!
//! ```text
//! ca.pem           the root's certificate
//! ca.key           its private key, PKCS#8 in PEM, 0600
//! revoked.crl      the signed revocation list, PEM
//! issued/HEX.pem   every certificate ever issued, under its serial number
//! ```

use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use exoskel_identity::limits::CERTIFICATE_BYTES_MAX;
use exoskel_identity::{
    CertificateDetails, Credential, CredentialError, Expected, Identity, IdentityError,
    PeerVerifier, PrivateAuthority, RevocationListDetails, RevokedCertificate, Role, hex,
};
use exoskel_trust::{read_private, read_revocation_lists};
use rcgen::{CertificateRevocationList, Issuer, KeyPair};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime};
use zeroize::Zeroizing;

use super::file::{PRIVATE, PUBLIC, check_folder, lock, make_folder, write};
use super::record::{IssuedCertificate, Recorded, read_certificate, recorded};
use super::{AUTHORITY_VALIDITY, CLOCK_SKEW, DAY, PkiError, form};

const ROOT: &str = "ca.pem";
const KEY: &str = "ca.key";
const REVOKED: &str = "revoked.crl";
const ISSUED: &str = "issued";

/// How long a revocation list is good at least. It is made good for as long as the longest-lived leaf that carries it,
/// so that a credential file never becomes useless before its certificate does.
const REVOCATION_LIST_VALIDITY_MIN: Duration = Duration::from_secs(90 * DAY);

/// Authorities and revocation lists that a credential holds beside those of its own authority.
type OfOthers = (
    Vec<CertificateDer<'static>>,
    Vec<CertificateRevocationListDer<'static>>,
);

/// A private authority in a folder.
///
/// # Security
/// The key is read for each signature and not kept. Whoever can read `ca.key` can be anybody.
#[derive(Debug)]
pub struct AuthorityDirectory {
    path: PathBuf,
    root: CertificateDer<'static>,
    common_name: String,
    public_key: Vec<u8>,
    not_after: UnixTime,
}

impl AuthorityDirectory {
    /// Makes a new authority in a folder, which is made if it is missing.
    ///
    /// # Errors
    /// [`PkiError::AuthorityExists`] when the folder holds one, finished or not; [`PkiError::Replaceable`] when somebody
    /// else could replace files in it; otherwise when a file can't be written.
    pub fn initialise(path: impl AsRef<Path>, now: UnixTime) -> Result<Self, PkiError> {
        let path = path.as_ref();
        check_folders(path)?;
        make_folder(&path.join(ISSUED))?;
        let _lock = lock(path)?;
        if path.join(ROOT).exists() || path.join(KEY).exists() {
            return Err(PkiError::AuthorityExists {
                path: path.to_owned(),
            });
        }
        let key = KeyPair::generate()?;
        let parameters = form::root("Exoskel authority", &key, now, AUTHORITY_VALIDITY)?;
        let root = parameters.self_signed(&key)?;
        let text = Zeroizing::new(key.serialize_pem());
        let issuer = Issuer::new(parameters, key);
        let next_update = form::later(now, REVOCATION_LIST_VALIDITY_MIN);
        let list = form::revocation_list(&issuer, 1, &[], now, next_update)?;
        write(&path.join(KEY), text.as_bytes(), PRIVATE)?;
        write(&path.join(REVOKED), list.pem()?.as_bytes(), PUBLIC)?;
        // Last: where this file is, the others are.
        write(&path.join(ROOT), root.pem().as_bytes(), PUBLIC)?;
        Self::open(path)
    }

    /// Opens the authority in a folder.
    ///
    /// # Errors
    /// [`PkiError::NoAuthority`] when there is none; [`PkiError::Replaceable`] when somebody else could replace files in
    /// it; otherwise when its certificate can't be used.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, PkiError> {
        let path = path.as_ref();
        let file = path.join(ROOT);
        if !file.exists() {
            return Err(PkiError::NoAuthority {
                path: path.to_owned(),
            });
        }
        check_folders(path)?;
        let (root, details) = read_certificate(&file)?;
        let foreign = |reason| PkiError::Foreign {
            path: file.clone(),
            reason,
        };
        if !details.is_authority || !details.is_self_issued {
            return Err(foreign("this is not the certificate of a root"));
        }
        let common_name = details
            .common_name
            .ok_or_else(|| foreign("the root has no common name"))?;
        let CertificateDetails {
            public_key,
            not_after,
            ..
        } = details;
        Ok(Self {
            path: path.to_owned(),
            root,
            common_name,
            public_key,
            not_after,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The root's certificate, which is what others need to trust this authority.
    pub fn root(&self) -> &CertificateDer<'static> {
        &self.root
    }

    /// The file of the signed revocation list, to be copied to every host after a revocation.
    pub fn revocation_list_path(&self) -> PathBuf {
        self.path.join(REVOKED)
    }

    /// Issues a credential: a new key, a certificate for it, the root, and the revocation list as it is now.
    ///
    /// # Errors
    /// [`PkiError`] when the name can't stand in a certificate, the validity is zero or outlives the authority, or a
    /// file can't be read or written.
    pub fn issue(
        &self,
        role: Role,
        name: &str,
        validity: Duration,
        now: UnixTime,
    ) -> Result<Credential, PkiError> {
        self.issue_beside(Identity::new(role, name)?, validity, now, (vec![], vec![]))
    }

    /// Issues a credential that replaces one of this authority: the same role and name, a new key, the revocation list as it is
    /// now, and whatever other authorities and lists the old credential holds. The old one stays good until it ends.
    ///
    /// Without a `validity` it is valid for as long as the old one was.
    ///
    /// # Errors
    /// [`PkiError::NotIssued`] when this authority did not issue the old one, [`PkiError::NotRenewed`] when it was revoked; otherwise
    /// those of [`issue`](Self::issue).
    pub fn renew(
        &self,
        old: &Credential,
        validity: Option<Duration>,
        now: UnixTime,
    ) -> Result<Credential, PkiError> {
        let leaf = old.chain().first();
        let recorded = self.recorded()?;
        let found = recorded
            .into_iter()
            .find(|one| leaf == Some(&one.certificate))
            .ok_or_else(|| PkiError::NotIssued {
                got: old.identity().to_string(),
            })?
            .issued;
        if found.revoked.is_some() {
            return Err(PkiError::NotRenewed {
                serial: found.serial,
            });
        }
        let before = Duration::from_secs(
            found
                .not_after
                .as_secs()
                .saturating_sub(found.not_before.as_secs())
                .saturating_sub(CLOCK_SKEW.as_secs()),
        );
        let (_, own_list) = self.current_list()?;
        let is_of_another = |list: &CertificateRevocationListDer<'_>| {
            RevocationListDetails::read(list).is_ok_and(|list| list.issuer != own_list.issuer)
        };
        let anchors = old.trust_anchors().iter();
        let anchors = anchors.filter(|anchor| **anchor != self.root).cloned();
        let lists = old.revocation_lists().iter();
        let lists = lists.filter(|list| is_of_another(list)).cloned();
        let beside = (anchors.collect(), lists.collect());
        self.issue_beside(found.identity, validity.unwrap_or(before), now, beside)
    }

    /// Signs the revocation list anew, with what it revokes and the next number, so that it is good for at least `validity` from
    /// now on, 90 days without one. Comes back with the time at which it becomes stale.
    ///
    /// # Errors
    /// [`PkiError::Validity`] when the list would outlive the authority; otherwise when a file can't be read or written.
    pub fn renew_list(
        &self,
        validity: Option<Duration>,
        now: UnixTime,
    ) -> Result<UnixTime, PkiError> {
        let until = match validity {
            Some(validity) => self.end_of(validity, now)?,
            None => form::later(now, REVOCATION_LIST_VALIDITY_MIN),
        };
        let _lock = lock(&self.path)?;
        let (_, list) = self.current_list()?;
        let until = until.max(list.next_update);
        self.sign_list(&self.issuer()?, list, until, now)?;
        Ok(until)
    }

    /// Issues a credential that also holds authorities and revocation lists of others.
    fn issue_beside(
        &self,
        identity: Identity,
        validity: Duration,
        now: UnixTime,
        (mut anchors, mut lists): OfOthers,
    ) -> Result<Credential, PkiError> {
        let not_after = self.end_of(validity, now)?;
        let _lock = lock(&self.path)?;
        let issuer = self.issuer()?;
        // A list is stale at the very second that it names, and clocks differ.
        let list = self.list_good_until(&issuer, form::later(not_after, CLOCK_SKEW), now)?;

        let key = KeyPair::generate()?;
        let leaf = form::leaf(&identity, now, not_after)?.signed_by(&key, &issuer)?;
        let key = Zeroizing::new(key.serialize_der());
        let chain = vec![leaf.der().clone()];
        anchors.insert(0, self.root.clone());
        lists.insert(0, list);
        let credential = Credential::new(chain, key, anchors, lists)?;
        let authority = credential.authority(0).map_err(CredentialError::Trust)?;
        let verified = credential
            .verify_own(&authority, now)
            .map_err(PkiError::Refused)?;
        // Recorded before it is handed out: what isn't listed can't be revoked by name.
        let file = format!("{}.pem", hex(verified.serial()));
        write(
            &self.path.join(ISSUED).join(file),
            leaf.pem().as_bytes(),
            PUBLIC,
        )?;
        Ok(credential)
    }

    /// Takes back what was issued under a serial number (hexadecimal) or under a name, whatever the role. Peers know
    /// of it once they have the new revocation list.
    ///
    /// # Errors
    /// [`PkiError::NotIssued`] and [`PkiError::AlreadyRevoked`] when there is nothing to take back; otherwise when a
    /// file can't be read or written. Nothing is changed then.
    pub fn revoke(
        &self,
        serial_or_name: &str,
        now: UnixTime,
    ) -> Result<Vec<IssuedCertificate>, PkiError> {
        let _lock = lock(&self.path)?;
        let wanted = serial_or_name.to_ascii_lowercase();
        let mut found = self.recorded()?;
        found.retain(|one| one.issued.serial == wanted || one.issued.identity.name == wanted);
        let got = || serial_or_name.to_owned();
        if found.is_empty() {
            return Err(PkiError::NotIssued { got: got() });
        }
        found.retain(|one| one.issued.revoked.is_none());
        if found.is_empty() {
            return Err(PkiError::AlreadyRevoked { got: got() });
        }
        let (_, mut list) = self.current_list()?;
        list.revoked
            .extend(found.iter().map(|one| RevokedCertificate {
                serial: one.serial.clone(),
                time: now,
            }));
        let next_update = list
            .next_update
            .max(form::later(now, REVOCATION_LIST_VALIDITY_MIN));
        let signed = form::revocation_list(
            &self.issuer()?,
            list.number.saturating_add(1),
            &list.revoked,
            now,
            next_update,
        )?;
        self.check_effective(&signed, &found, now)?;
        write(
            &self.revocation_list_path(),
            signed.pem()?.as_bytes(),
            PUBLIC,
        )?;
        let revoked = |one: Recorded| IssuedCertificate {
            revoked: Some(now),
            ..one.issued
        };
        Ok(found.into_iter().map(revoked).collect())
    }

    /// Everything ever issued, the oldest first.
    ///
    /// # Errors
    /// [`PkiError`] when a file can't be read.
    pub fn list(&self) -> Result<Vec<IssuedCertificate>, PkiError> {
        let mut issued: Vec<_> = self.recorded()?.into_iter().map(|one| one.issued).collect();
        issued.sort_by(|one, other| {
            (one.not_before, &one.serial).cmp(&(other.not_before, &other.serial))
        });
        Ok(issued)
    }

    fn end_of(&self, validity: Duration, now: UnixTime) -> Result<UnixTime, PkiError> {
        let not_after = form::later(now, validity);
        if validity.is_zero() || not_after > self.not_after {
            let left = self.not_after.as_secs().saturating_sub(now.as_secs());
            let (max, authority_ends) = (Duration::from_secs(left), self.not_after);
            return Err(PkiError::Validity {
                got: validity,
                max,
                authority_ends,
            });
        }
        Ok(not_after)
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, PkiError> {
        let path = self.path.join(KEY);
        let text = read_private(&path, CERTIFICATE_BYTES_MAX)?;
        let text = std::str::from_utf8(&text).ok();
        // The library's own message could repeat a line of the key.
        let key = text.and_then(|text| KeyPair::from_pem(text).ok());
        let foreign = |reason| PkiError::Foreign {
            path: path.clone(),
            reason,
        };
        let key = key.ok_or_else(|| foreign("this is not a private key in PKCS#8 and PEM"))?;
        if key.public_key_raw() != self.public_key {
            return Err(foreign("this key does not belong to ca.pem"));
        }
        Ok(form::issuer(&self.common_name, key))
    }

    /// The revocation list, signed anew when it would become stale before `until`.
    fn list_good_until(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        until: UnixTime,
        now: UnixTime,
    ) -> Result<CertificateRevocationListDer<'static>, PkiError> {
        let (current, details) = self.current_list()?;
        if details.next_update >= until {
            return Ok(current);
        }
        let until = until.max(form::later(now, REVOCATION_LIST_VALIDITY_MIN));
        self.sign_list(issuer, details, until, now)
    }

    /// Replaces the list by one with the next number.
    fn sign_list(
        &self,
        issuer: &Issuer<'_, KeyPair>,
        list: RevocationListDetails,
        until: UnixTime,
        now: UnixTime,
    ) -> Result<CertificateRevocationListDer<'static>, PkiError> {
        let number = list.number.saturating_add(1);
        let signed = form::revocation_list(issuer, number, &list.revoked, now, until)?;
        write(
            &self.revocation_list_path(),
            signed.pem()?.as_bytes(),
            PUBLIC,
        )?;
        Ok(signed.der().clone())
    }

    fn current_list(
        &self,
    ) -> Result<(CertificateRevocationListDer<'static>, RevocationListDetails), PkiError> {
        let path = self.revocation_list_path();
        // A missing list is an error: what stood in it would be valid again.
        let list = read_revocation_lists(&path)?.swap_remove(0);
        let details = RevocationListDetails::read(&list)
            .map_err(|reason| PkiError::Damaged { path, reason })?;
        Ok((list, details))
    }

    /// Asks a verifier, as peers will: a revocation that doesn't work is worse than one that fails.
    fn check_effective(
        &self,
        list: &CertificateRevocationList,
        revoked: &[Recorded],
        now: UnixTime,
    ) -> Result<(), PkiError> {
        let ineffective = |one: &Recorded| PkiError::Ineffective {
            serial: one.issued.serial.clone(),
        };
        for one in revoked {
            let authority =
                PrivateAuthority::new(slice::from_ref(&self.root), slice::from_ref(list.der()), 0)
                    .map_err(|_| ineffective(one))?;
            let expected = Expected {
                roles: &Role::ALL,
                name: None,
            };
            match authority.verify(slice::from_ref(&one.certificate), now, &expected) {
                Err(IdentityError::Revoked { .. } | IdentityError::Expired { .. }) => {}
                _ => return Err(ineffective(one)),
            }
        }
        Ok(())
    }

    fn recorded(&self) -> Result<Vec<Recorded>, PkiError> {
        let (_, list) = self.current_list()?;
        recorded(&self.path.join(ISSUED), list.revoked)
    }
}

/// Who replaces a certificate of the authority becomes the one whom everybody trusts; who plants one among the issued has
/// it taken back, or not.
fn check_folders(path: &Path) -> Result<(), PkiError> {
    check_folder(path)?;
    check_folder(&path.join(ISSUED))
}
