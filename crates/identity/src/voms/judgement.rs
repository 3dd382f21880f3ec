//! Which attributes of a chain count.
//!
//! Only the certificate nearest to the leaf that carries any is looked into, as both VOMS libraries do: whoever delegates
//! a proxy with fewer attributes must be able to rely on it that the wider ones above are gone.

use rustls_pki_types::{CertificateDer, UnixTime};

use super::attribute_certificate::{AttributeCertificate, read_list};
use super::attributes::{Attributes, VomsAttributes, name};
use super::error::{AttributeFault, AttributeProblem};
use super::fqan::Fqan;
use super::policy_authority::PolicyAuthority;
use super::signers::SignerChains;
use crate::der::without_leading_zeros;
use crate::distinguished_name::{DistinguishedName, NameParts};
use crate::error::IdentityError;
use crate::grid::{GridSettings, JudgedPath, judge_signer};
use crate::hex::hex;
use crate::peer_text::PeerText;
use crate::trust_store::{TrustStore, VomsFile};
use crate::x509::{Certificate, KeyUsage, Signed};

/// Judges the attribute certificates of a path that was found good. It can't fail: what doesn't count is a fault.
pub(crate) fn judge(
    path: &JudgedPath,
    store: &TrustStore,
    settings: &GridSettings,
    now: UnixTime,
) -> Attributes {
    let mut attributes = Attributes {
        good: Vec::new(),
        faults: Vec::new(),
        ends: path.ends,
    };
    let mut nearest = None;
    for (index, &position) in path.entities.iter().enumerate() {
        let Some(list) = path.presented[position].attribute_certificates() else {
            continue;
        };
        let mut fault = |place: Option<usize>, vo: Option<PeerText>, problem: AttributeProblem| {
            attributes.faults.push(AttributeFault {
                certificate: path.which(position),
                position: place,
                vo,
                problem,
            });
        };
        let list = match read_list(list) {
            Ok(list) => list,
            Err(problem) => {
                nearest.get_or_insert(position);
                fault(None, None, problem);
                continue;
            }
        };
        let (_, above) = path.entities.split_at(path.subject_index + 1);
        let judge = AttributeJudge {
            holder: &path.presented[path.entities[path.subject_index]],
            above: above.iter().map(|&one| &path.presented[one]).collect(),
            store,
            settings,
            now,
        };
        for (place, der) in list.into_iter().enumerate() {
            if index > path.subject_index {
                fault(Some(place), None, AttributeProblem::NotInherited);
                continue;
            }
            if *nearest.get_or_insert(position) != position {
                fault(Some(place), None, AttributeProblem::NotNearest);
                continue;
            }
            let mut vo = None;
            match judge.attribute_certificate(der, &mut vo) {
                Ok((good, ends)) => {
                    attributes.ends = attributes.ends.min(ends);
                    attributes.good.push(good);
                }
                Err(problem) => fault(Some(place), vo, problem),
            }
        }
    }
    attributes
}

/// By what an attribute certificate is judged.
struct AttributeJudge<'a> {
    /// Whose attributes they have to be: the end entity's, or the independent proxy's that counts as one.
    holder: &'a Certificate,
    /// Who issued an independent proxy. What they have is not inherited.
    above: Vec<&'a Certificate>,
    store: &'a TrustStore,
    settings: &'a GridSettings,
    now: UnixTime,
}

impl<'a> AttributeJudge<'a> {
    /// Judges one attribute certificate, what costs nothing first. Returns the attributes, and when the first thing that
    /// proves them ends. `vo` gets what can be said about where a bad one comes from.
    fn attribute_certificate(
        &self,
        der: &[u8],
        vo: &mut Option<PeerText>,
    ) -> Result<(VomsAttributes, UnixTime), AttributeProblem> {
        let read = AttributeCertificate::read(der)?;
        let authority = PolicyAuthority::parse(read.policy_authority)?;
        *vo = Some(PeerText::new(authority.vo));
        self.check_holder(&read)?;
        self.check_time(&read)?;
        self.check_targets(&read)?;
        let fqans = fqans(&read, authority.vo)?;
        let issuer = name(read.issuer, "issuer")?;
        let signer = self.find_signer(der, &read, &issuer, &authority)?;
        check_signature(der, &signer)?;
        check_signer_use(&signer.certificate)?;
        let path = self.judge_signer(&signer, &authority)?;
        let ends = read.not_after.min(path.ends);
        let attributes = VomsAttributes {
            vo: authority.vo.to_owned(),
            server: authority.host.to_owned(),
            fqans,
            generic: read.extensions.generic,
            issuer,
            serial: without_leading_zeros(read.serial).into(),
            not_after: ends,
        };
        Ok((attributes, ends))
    }

    /// RFC 5755 section 4.2.2: the holder's certificate is named by its issuer and its serial number. VOMS servers write
    /// the holder's own name where the issuer's should stand, and everybody has learned to read that.
    ///
    /// That name is also the issuer's of every proxy of the holder, and whoever makes a proxy chooses its serial number: what
    /// means a certificate above an independent proxy does not mean the proxy.
    fn check_holder(&self, read: &AttributeCertificate<'_>) -> Result<(), AttributeProblem> {
        let named = name(read.holder_issuer, "holder")?;
        let is_meant = |holder: &Certificate| {
            (named.matches(&holder.issuer) || named.matches(&holder.subject))
                && read.holder_serial == holder.serial_der()
        };
        if is_meant(self.holder) {
            return match self.above.iter().copied().any(is_meant) {
                true => Err(AttributeProblem::NotInherited),
                false => Ok(()),
            };
        }
        Err(AttributeProblem::OtherHolder {
            got: PeerText::new(&named.slash()),
            got_serial: hex(without_leading_zeros(read.holder_serial)),
            expected: PeerText::new(&self.holder.subject.slash()),
            expected_serial: hex(self.holder.serial()),
        })
    }

    fn check_time(&self, read: &AttributeCertificate<'_>) -> Result<(), AttributeProblem> {
        let now = self.now;
        if now > read.not_after {
            let not_after = read.not_after;
            return Err(AttributeProblem::Expired { not_after, now });
        }
        let latest = now
            .as_secs()
            .saturating_add(self.settings.clock_skew_seconds);
        if read.not_before.as_secs() > latest {
            let not_before = read.not_before;
            return Err(AttributeProblem::NotYetValid { not_before, now });
        }
        Ok(())
    }

    fn check_targets(&self, read: &AttributeCertificate<'_>) -> Result<(), AttributeProblem> {
        let Some(targets) = &read.extensions.targets else {
            return Ok(());
        };
        let own = &self.settings.attribute_targets;
        let is_own = |target: &&str| own.iter().any(|name| name.eq_ignore_ascii_case(target));
        if targets.iter().any(is_own) {
            return Ok(());
        }
        Err(AttributeProblem::OtherTarget {
            got: PeerText::new(&targets.join(", ")),
            expected: PeerText::new(&own.join(", ")),
        })
    }

    /// The certificate that should have signed, and why it may: pinned by the site, or sent along and to be named by a
    /// `.lsc` file. While a server changes its certificate, a site has several of these.
    fn find_signer(
        &self,
        der: &[u8],
        read: &AttributeCertificate<'_>,
        issuer: &DistinguishedName,
        authority: &PolicyAuthority<'_>,
    ) -> Result<Signer<'a>, AttributeProblem> {
        let mut pinned = Vec::new();
        let mut chains = None;
        for (file, content) in self.store.voms_files(authority.vo) {
            match content {
                VomsFile::Certificates(certificates) => {
                    pinned.extend(
                        certificates
                            .iter()
                            .filter(|one| one.subject.matches(issuer)),
                    );
                }
                VomsFile::Chains(stated) if authority.is_served_by(file) => chains = Some(stated),
                VomsFile::Chains(_) => {}
            }
        }
        let signed = pinned.iter().find(|one| has_signed(der, one));
        // None of them signed, and nothing else could show who did: then the first is the one that should have.
        let pinned = signed.or_else(|| pinned.first().filter(|_| chains.is_none()));
        if let Some(certificate) = pinned {
            return Ok(Signer {
                certificate: Certificate::clone(certificate),
                sent: read_signers(read)?,
                chains: None,
            });
        }
        let Some(chains) = chains else {
            return Err(AttributeProblem::UnknownServer {
                vo: authority.vo.to_owned(),
                host: authority.host.to_owned(),
                signer: PeerText::new(&issuer.slash()),
            });
        };
        let mut sent = read_signers(read)?;
        if sent.is_empty() {
            return Err(AttributeProblem::NoSignerCertificate {
                vo: authority.vo.to_owned(),
                host: authority.host.to_owned(),
            });
        }
        let certificate = sent.remove(0);
        if !certificate.subject.matches(issuer) {
            return Err(AttributeProblem::OtherSigner {
                issuer: PeerText::new(&issuer.slash()),
                signer: PeerText::new(&certificate.subject.slash()),
            });
        }
        // Before anything is computed for a signer whom nobody named.
        let first = [&certificate.subject, &certificate.issuer];
        if !chains.begin_with(&first.map(NameParts::of)) {
            return Err(other_chain(first, authority));
        }
        Ok(Signer {
            certificate,
            sent,
            chains: Some(chains),
        })
    }

    /// The signer's own path: to a trust anchor, with revocation, and by the names that the site wrote down.
    fn judge_signer(
        &self,
        signer: &Signer<'_>,
        authority: &PolicyAuthority<'_>,
    ) -> Result<JudgedPath, AttributeProblem> {
        let chain: Vec<Certificate> = std::iter::once(&signer.certificate)
            .chain(&signer.sent)
            .cloned()
            .collect();
        let judged = judge_signer(self.store, self.settings, chain, self.now);
        let Some(chains) = signer.chains else {
            return judged.map_err(signer_error);
        };
        match judged {
            Ok(path) => {
                let names = || std::iter::once(path.subject()).chain(&path.authorities);
                if chains.name(&parts(names())) {
                    Ok(path)
                } else {
                    Err(other_chain(names(), authority))
                }
            }
            // That the chain is another one says more than that it leads nowhere.
            Err(error) => {
                let names = signer.names_as_sent();
                if chains.name(&parts(names.iter().copied())) {
                    Err(signer_error(error))
                } else {
                    Err(other_chain(names, authority))
                }
            }
        }
    }
}

/// Who should have signed.
struct Signer<'a> {
    certificate: Certificate,
    /// What came along besides it: its authorities.
    sent: Vec<Certificate>,
    /// The names that its path must have; nothing for a pinned certificate.
    chains: Option<&'a SignerChains>,
}

impl Signer<'_> {
    /// The names of its path as far as the certificates that came along tell.
    fn names_as_sent(&self) -> Vec<&DistinguishedName> {
        let mut names = vec![&self.certificate.subject, &self.certificate.issuer];
        for certificate in &self.sent {
            if certificate.subject.matches(names[names.len() - 1]) {
                names.push(&certificate.issuer);
            }
        }
        names
    }
}

fn read_signers(read: &AttributeCertificate<'_>) -> Result<Vec<Certificate>, AttributeProblem> {
    let sent = read.extensions.signer_certificates.iter();
    sent.map(|der| {
        Certificate::read(&CertificateDer::from(*der)).map_err(|_| AttributeProblem::Malformed {
            field: "signer's certificates",
        })
    })
    .collect()
}

fn fqans(read: &AttributeCertificate<'_>, vo: &str) -> Result<Vec<Fqan>, AttributeProblem> {
    if read.fqans.is_empty() {
        return Err(AttributeProblem::NoAttributes);
    }
    let parse = |text: &&str| {
        let fqan: Fqan = text.parse()?;
        if fqan.vo() == vo {
            return Ok(fqan);
        }
        Err(AttributeProblem::ForeignFqan {
            fqan: PeerText::new(text),
            vo: PeerText::new(vo),
        })
    };
    read.fqans.iter().map(parse).collect()
}

fn has_signed(der: &[u8], certificate: &Certificate) -> bool {
    Signed::read(der).is_some_and(|signed| signed.verify(der, &certificate.key).is_ok())
}

fn check_signature(der: &[u8], signer: &Signer<'_>) -> Result<(), AttributeProblem> {
    let signed = Signed::read(der).ok_or(AttributeProblem::Malformed { field: "signature" })?;
    signed.verify(der, &signer.certificate.key).map_err(|_| {
        let (name, algorithm) = (
            PeerText::new(&signer.certificate.subject.slash()),
            signed.algorithm.to_string(),
        );
        if signer.chains.is_none() {
            AttributeProblem::OtherThanPinned {
                signer: name,
                algorithm,
            }
        } else {
            AttributeProblem::Signature {
                signer: name,
                algorithm,
            }
        }
    })
}

/// RFC 5755 section 4.5: the key may make digital signatures. That it belongs to no authority is a rule of its path.
fn check_signer_use(signer: &Certificate) -> Result<(), AttributeProblem> {
    if signer.allows(KeyUsage::DigitalSignature) {
        return Ok(());
    }
    Err(AttributeProblem::SignerUsage {
        signer: PeerText::new(&signer.subject.slash()),
        expected: "key usage for digital signatures",
    })
}

fn parts<'a>(names: impl IntoIterator<Item = &'a DistinguishedName>) -> Vec<NameParts> {
    names.into_iter().map(NameParts::of).collect()
}

fn other_chain<'a>(
    names: impl IntoIterator<Item = &'a DistinguishedName>,
    authority: &PolicyAuthority<'_>,
) -> AttributeProblem {
    let names: Vec<PeerText> = names
        .into_iter()
        .map(|name| PeerText::new(&name.slash_by_parts()))
        .collect();
    AttributeProblem::OtherChain {
        got: names,
        vo: authority.vo.to_owned(),
        host: authority.host.to_owned(),
    }
}

fn signer_error(error: IdentityError) -> AttributeProblem {
    AttributeProblem::Signer(Box::new(error))
}
