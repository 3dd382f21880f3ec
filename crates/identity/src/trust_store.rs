//! Whom a grid trusts: a directory of authorities as the IGTF distributes it, and the VOMS servers beside it.
//!
//! The files come in as bytes and are parsed once for each generation of the trust, never for a connection. A file that
//! can't be used keeps what stood under its name before, so that a half-written list never means "nobody is revoked".

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use aws_lc_rs::digest;

use crate::distinguished_name::{DistinguishedName, NameKey};
use crate::grid::{GridSettings, NameSpaces};
use crate::limits::{TRUST_BYTES_MAX, TRUST_FILES_MAX};
use crate::revocation::RevocationList;
use crate::slash_name::normal_form;

mod authority;
mod bad_file;
mod coverage;
mod file;
mod issuer_rules;
mod name_space;
mod report;
mod revocation_lists;

pub(crate) use authority::{Authority, AuthorityKind};
pub use bad_file::{BadFile, BadFileReason};
pub(crate) use coverage::Coverage;
pub(crate) use file::VomsFile;
use file::{Content, Directory, FileKind, Kept};
pub(crate) use name_space::{Forbidding, IssuerRules};
pub use report::{AuthorityReport, ListFault, RevocationListReport, SelfSignature, TrustReport};

/// A file of a trust directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustFile {
    /// Its path relative to the directory, with slashes.
    pub name: String,
    /// Its bytes.
    pub content: Vec<u8>,
}

/// One generation of what a grid trusts. It never changes; [`load`](Self::load) makes the next one.
pub struct TrustStore {
    generation: u64,
    /// What is in use of each file of the directory of authorities, by its name.
    anchor_files: BTreeMap<String, Arc<Kept>>,
    /// What is in use of each file of the vomsdir, by its name.
    voms_files: BTreeMap<String, Arc<Kept>>,
    /// The files that are there and say nothing that could be used.
    broken: BTreeSet<String>,
    authorities: Vec<Authority>,
    by_name: HashMap<NameKey, Vec<usize>>,
    coverage: HashMap<NameKey, Vec<Arc<Coverage>>>,
    rules: HashMap<String, Arc<IssuerRules>>,
}

impl TrustStore {
    /// Parses the files of a directory of authorities and of a vomsdir. What `previous` has parsed of a file that did
    /// not change is taken over.
    ///
    /// Of the directory of authorities, files named `HASH.N` hold certificates (PEM or DER), `HASH.rN` revocation lists,
    /// `HASH.signing_policy` and `HASH.namespaces` the names that an authority may sign; the rest is ignored. A file
    /// that can't be used (half-written, empty, unparsable, too long, a list that its authority did not sign) keeps what
    /// `previous` had under its name, and is reported. A file that is no longer there is gone.
    ///
    /// This never fails: a store without a single authority trusts nobody.
    pub fn load(
        anchors: Vec<TrustFile>,
        vomsdir: Vec<TrustFile>,
        previous: Option<&Self>,
        generation: u64,
    ) -> (Self, TrustReport) {
        let mut bad = Vec::new();
        let mut room = Room::default();
        let mut anchor_files = read_all(
            Directory::Anchors,
            anchors,
            previous.map(|store| &store.anchor_files),
            &mut room,
            &mut bad,
        );
        let voms_files = read_all(
            Directory::Voms,
            vomsdir,
            previous.map(|store| &store.voms_files),
            &mut room,
            &mut bad,
        );
        let (mut authorities, by_name) = authority::collect(&anchor_files, &mut bad);
        revocation_lists::replace_forged(
            &mut anchor_files,
            previous.map(|store| &store.anchor_files),
            &authorities,
            &by_name,
            &mut bad,
        );
        let coverage = revocation_lists::collect(&anchor_files);
        let rules = issuer_rules::collect(&anchor_files, &authorities);
        let broken = bad
            .iter()
            .filter(|bad| !bad.kept_previous)
            .map(|bad| bad.name.clone())
            .collect();
        authority::link(&mut authorities, &by_name, &anchor_files, &rules);
        let store = Self {
            generation,
            anchor_files,
            voms_files,
            broken,
            authorities,
            by_name,
            coverage,
            rules,
        };
        let report = store.report(bad);
        (store, report)
    }

    fn report(&self, bad_files: Vec<BadFile>) -> TrustReport {
        let mut lists_without_authority: Vec<_> = self
            .coverage
            .iter()
            .filter(|(name, _)| !self.by_name.contains_key(name))
            .filter_map(|(_, lists)| lists.first())
            .map(|coverage| self.list_report(&coverage.list))
            .collect();
        lists_without_authority
            .sort_by(|one, other| one.issuer.as_der().cmp(other.issuer.as_der()));
        let authority_report = |authority: &Authority| {
            let key = &authority.certificate.key;
            let list = self
                .revocation_lists(&authority.name)
                .iter()
                .find(|coverage| coverage.is_known_to_be_of(key) == Some(true))
                .map(|coverage| self.list_report(&coverage.list));
            AuthorityReport::of(authority, list)
        };
        TrustReport {
            generation: self.generation,
            authorities: self.authorities.iter().map(authority_report).collect(),
            bad_files,
            lists_without_authority,
            voms_files: self.voms_files.len(),
            organisations: self
                .voms_files
                .keys()
                .filter_map(|name| Some(name.split_once('/')?.0.to_owned()))
                .collect(),
        }
    }

    fn list_report(&self, list: &RevocationList) -> RevocationListReport {
        let files = self.files_of_list(list).into_iter();
        RevocationListReport {
            issuer: list.issuer.clone(),
            files: files.map(ToOwned::to_owned).collect(),
            this_update: list.this_update,
            next_update: list.next_update,
            revoked: list.len(),
        }
    }

    /// The names of the files that hold this list of the store.
    pub(crate) fn files_of_list(&self, list: &RevocationList) -> Vec<&str> {
        let holds = |kept: &Kept| match &kept.content {
            Content::RevocationList(coverage) => std::ptr::eq(&coverage.list, list),
            _ => false,
        };
        self.anchor_files
            .iter()
            .filter(|(_, kept)| holds(kept))
            .map(|(name, _)| name.as_str())
            .collect()
    }

    /// The number that the caller gave this state of the trust.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Stands for its generation and for what all its files say.
    pub(crate) fn fingerprint(&self) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&self.generation.to_be_bytes());
        for files in [&self.anchor_files, &self.voms_files] {
            context.update(&(files.len() as u64).to_be_bytes());
            for (name, kept) in files {
                context.update(&(name.len() as u64).to_be_bytes());
                context.update(name.as_bytes());
                context.update(&kept.digest);
            }
        }
        for name in &self.broken {
            context.update(&(name.len() as u64).to_be_bytes());
            context.update(name.as_bytes());
        }
        let mut fingerprint = [0; 32];
        fingerprint.copy_from_slice(context.finish().as_ref());
        fingerprint
    }

    /// The indexes of the authorities of that name, usable or not.
    pub(crate) fn indexes_named(&self, name: &NameKey) -> &[usize] {
        self.by_name.get(name).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn authority(&self, index: usize) -> &Authority {
        &self.authorities[index]
    }

    /// How many certificates could stand at the end of a path.
    pub(crate) fn anchors(&self) -> usize {
        self.authorities
            .iter()
            .filter(|authority| authority.kind == AuthorityKind::Anchor)
            .count()
    }

    /// The revocation lists of the authorities with that name, the newest first.
    pub(crate) fn revocation_lists(&self, issuer: &NameKey) -> &[Arc<Coverage>] {
        self.coverage.get(issuer).map_or(&[], Vec::as_slice)
    }

    /// Whether there is a list that can't be read and that could be of this authority of the directory; for an issuer that
    /// is not there, one that could be of nobody there.
    pub(crate) fn has_broken_list(&self, issuer: Option<&Authority>) -> bool {
        let is_of = |authority: &Authority, hash| authority.hashes().any(|one| one == hash);
        self.broken.iter().any(|file| {
            file.split_once('.').is_some_and(|(hash, kind)| {
                kind.starts_with('r')
                    && match issuer {
                        Some(authority) => is_of(authority, hash),
                        None => !self.authorities.iter().any(|one| is_of(one, hash)),
                    }
            })
        })
    }

    /// Whether a file that can't be read would say which names this authority may sign.
    pub(crate) fn has_broken_rules(&self, authority: &Authority) -> bool {
        let is_broken = |hash: &str, kind| self.broken.contains(&format!("{hash}.{kind}"));
        authority
            .hashes()
            .any(|hash| is_broken(hash, "signing_policy") || is_broken(hash, "namespaces"))
    }

    /// What the files say about the names that an issuer may sign; the name in its slash form.
    pub(crate) fn rules_for(&self, issuer: &DistinguishedName) -> Option<&Arc<IssuerRules>> {
        self.rules.get(&normal_form(&issuer.slash()))
    }

    /// Whether some authority may sign a name that a pattern of rules means, such as `/DC=org/*`: by what the files say about names, or
    /// because nothing needs to be said.
    pub fn may_sign_some(&self, pattern: &str, settings: &GridSettings) -> bool {
        let pattern = normal_form(pattern);
        let pattern = match pattern.strip_suffix("/*") {
            Some(above) => format!("{above}*"),
            None => pattern,
        };
        let is_free = |authority: &Authority| {
            authority.kind == AuthorityKind::Anchor && authority.rules.is_none()
        };
        settings.name_spaces == NameSpaces::WherePresent && self.authorities.iter().any(is_free)
            || self
                .rules
                .values()
                .any(|rules| rules.could_permit(&pattern))
    }

    /// The files of one virtual organisation's directory in the vomsdir, with their names inside it.
    pub(crate) fn voms_files<'a, 'o>(
        &'a self,
        organisation: &'o str,
    ) -> impl Iterator<Item = (&'a str, &'a VomsFile)> + use<'a, 'o> {
        self.voms_files
            .range(format!("{organisation}/")..)
            .map_while(move |(name, kept)| {
                let inside = name.strip_prefix(organisation)?.strip_prefix('/')?;
                Some((inside, kept))
            })
            .filter_map(|(name, kept)| match &kept.content {
                Content::Voms(file) => Some((name, file)),
                _ => None,
            })
    }
}

impl fmt::Debug for TrustStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("TrustStore")
            .field("generation", &self.generation)
            .field("authorities", &self.authorities.len())
            .field("files", &(self.anchor_files.len() + self.voms_files.len()))
            .finish_non_exhaustive()
    }
}

/// What may still come in before a limit is reached.
struct Room {
    files: usize,
    bytes: usize,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            files: TRUST_FILES_MAX,
            bytes: TRUST_BYTES_MAX,
        }
    }
}

impl Room {
    fn take(&mut self, bytes: usize) -> Result<(), BadFileReason> {
        self.files = self
            .files
            .checked_sub(1)
            .ok_or(BadFileReason::TooManyFiles)?;
        self.bytes = self
            .bytes
            .checked_sub(bytes)
            .ok_or(BadFileReason::TooManyBytes)?;
        Ok(())
    }
}

fn read_all(
    directory: Directory,
    files: Vec<TrustFile>,
    previous: Option<&BTreeMap<String, Arc<Kept>>>,
    room: &mut Room,
    bad: &mut Vec<BadFile>,
) -> BTreeMap<String, Arc<Kept>> {
    let mut kept = BTreeMap::new();
    // The old and the new kind of hash name the same file twice.
    let mut same: HashMap<(FileKind, [u8; 32]), Arc<Kept>> = HashMap::new();
    for TrustFile { name, content } in files {
        let Some(kind) = FileKind::of(directory, &name) else {
            continue;
        };
        let before = previous.and_then(|files| files.get(&name));
        let read = room.take(content.len()).and_then(|()| {
            let mut digest = [0; 32];
            digest.copy_from_slice(digest::digest(&digest::SHA256, &content).as_ref());
            if let Some(read) = before.filter(|before| before.digest == digest) {
                return Ok(Arc::clone(read));
            }
            if let Some(read) = same.get(&(kind, digest)) {
                return Ok(Arc::clone(read));
            }
            let content = kind.read(content)?;
            let read = Arc::new(Kept { digest, content });
            same.insert((kind, digest), Arc::clone(&read));
            Ok(read)
        });
        match read {
            Ok(read) => {
                kept.insert(name, read);
            }
            Err(reason) => {
                bad.push(BadFile {
                    name: name.clone(),
                    reason,
                    kept_previous: before.is_some(),
                });
                if let Some(before) = before {
                    kept.insert(name, Arc::clone(before));
                }
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests;
