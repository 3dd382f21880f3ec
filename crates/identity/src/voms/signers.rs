//! Who may sign attributes of a virtual organisation: the `.lsc` files of a `vomsdir`.

use super::error::SignerChainsError;
use crate::distinguished_name::NameParts;
use crate::limits::{SIGNER_CHAIN_NAMES_MAX, SIGNER_CHAINS_MAX};
use crate::peer_text::PeerText;

/// The chains of names that a `.lsc` file states: each the VOMS server's name, its issuer's, and perhaps further ones up
/// to a root.
///
/// The format is that of VOMS: one name a line in OpenSSL's slash form, which [`NameParts`] takes apart, `#` before comments, a line
/// `------ NEXT CHAIN ------` between alternatives. The two VOMS libraries read longer chains differently: one wants each certificate's
/// subject *and* issuer, so that the names between stand twice, the other one wants each name once. Both are read here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SignerChains(Vec<Vec<NameParts>>);

const NEXT_CHAIN: &str = "NEXT CHAIN";

impl SignerChains {
    /// Reads a `.lsc` file.
    ///
    /// # Errors
    /// [`SignerChainsError`] names the line. A file with an error is refused as a whole.
    pub(crate) fn parse(content: &[u8]) -> Result<Self, SignerChainsError> {
        let text = std::str::from_utf8(content).map_err(|_| SignerChainsError::NotText)?;
        let mut chains = Vec::new();
        let mut chain: Vec<NameParts> = Vec::new();
        let mut last = 0;
        for (index, line) in text.lines().enumerate() {
            last = index + 1;
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') || is_text_mark(line) {
                continue;
            }
            if line.starts_with('-') && line.contains(NEXT_CHAIN) {
                finish(&mut chains, std::mem::take(&mut chain), last)?;
                continue;
            }
            let name = NameParts::parse(line).ok_or_else(|| SignerChainsError::NoName {
                line: last,
                got: PeerText::new(line),
            })?;
            if chain.last() != Some(&name) {
                chain.push(name);
            }
            if chain.len() > SIGNER_CHAIN_NAMES_MAX {
                return Err(SignerChainsError::TooMany);
            }
        }
        finish(&mut chains, chain, last)?;
        match chains.len() {
            0 => Err(SignerChainsError::NoChain),
            _ => Ok(Self(chains)),
        }
    }

    /// Whether a signer of that name and issuer is stated at all.
    pub(crate) fn begin_with(&self, signer: &[NameParts]) -> bool {
        !signer.is_empty() && self.0.iter().any(|chain| chain.starts_with(signer))
    }

    /// Whether the signer's path is one of those stated. `path` has the signer's name, its issuer's, and so on up to a
    /// trust anchor; a chain of the file may end earlier, since the path is checked up to the anchor anyway.
    pub(crate) fn name(&self, path: &[NameParts]) -> bool {
        self.0.iter().any(|chain| path.starts_with(chain))
    }
}

/// Some sites' tools put a chain between `-----BEGIN TEXT-----` and `-----END TEXT-----`.
fn is_text_mark(line: &str) -> bool {
    matches!(line.trim_matches('-').trim(), "BEGIN TEXT" | "END TEXT") && line.starts_with('-')
}

fn finish(
    chains: &mut Vec<Vec<NameParts>>,
    chain: Vec<NameParts>,
    line: usize,
) -> Result<(), SignerChainsError> {
    match chain.len() {
        0 => Ok(()),
        1 => Err(SignerChainsError::ShortChain { line, got: 1 }),
        _ if chains.len() == SIGNER_CHAINS_MAX => Err(SignerChainsError::TooMany),
        _ => {
            chains.push(chain);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SERVER: &str = "/DC=org/DC=grid/CN=voms.example.org";
    const AUTHORITY: &str = "/DC=org/DC=grid/CN=Grid CA";
    const ROOT: &str = "/DC=org/DC=grid/CN=Root";

    fn names(lines: &[&str]) -> Vec<NameParts> {
        lines
            .iter()
            .map(|line| NameParts::parse(line).unwrap())
            .collect()
    }

    fn parse(text: &str) -> Result<SignerChains, SignerChainsError> {
        SignerChains::parse(text.as_bytes())
    }

    #[test]
    fn a_chain_is_named_up_to_where_the_file_ends() {
        let two = parse(&format!("# the server\n{SERVER}\n{AUTHORITY}\n\n")).unwrap();
        assert!(two.name(&names(&[SERVER, AUTHORITY])));
        assert!(two.name(&names(&[SERVER, AUTHORITY, ROOT])));
        assert!(!two.name(&names(&[SERVER, ROOT])));
        assert!(!two.name(&names(&[AUTHORITY, ROOT])));
        assert!(!two.name(&names(&[SERVER])));
    }

    #[test]
    fn chains_are_read_in_both_spellings_and_as_alternatives() {
        let path = names(&[SERVER, AUTHORITY, ROOT]);
        for text in [
            format!("{SERVER}\n{AUTHORITY}\n{ROOT}\n"),
            format!("{SERVER}\n{AUTHORITY}\n{AUTHORITY}\n{ROOT}\n{ROOT}\n{ROOT}\n"),
            format!("/CN=x\n/CN=y\n------ NEXT CHAIN ------\n  {SERVER}\r\n{AUTHORITY}"),
            format!("-----BEGIN TEXT-----\n{SERVER}\n{AUTHORITY}\n-----END TEXT-----\n"),
        ] {
            assert!(parse(&text).unwrap().name(&path), "{text}");
        }
    }

    #[test]
    fn what_trusts_nobody_or_anybody_is_refused() {
        assert_eq!(parse(""), Err(SignerChainsError::NoChain));
        assert_eq!(parse("# nothing\n"), Err(SignerChainsError::NoChain));
        assert_eq!(
            parse(SERVER),
            Err(SignerChainsError::ShortChain { line: 1, got: 1 })
        );
        assert_eq!(
            parse(&format!(
                "{SERVER}\n{AUTHORITY}\n--- NEXT CHAIN ---\n{SERVER}\n"
            )),
            Err(SignerChainsError::ShortChain { line: 4, got: 1 })
        );
        assert!(matches!(
            parse(&format!("{SERVER}\nGrid CA\n")),
            Err(SignerChainsError::NoName { line: 2, .. })
        ));
        assert_eq!(
            SignerChains::parse(b"/CN=\xff\n"),
            Err(SignerChainsError::NotText)
        );
        let long = "/CN=a\n/CN=b\n".repeat(SIGNER_CHAIN_NAMES_MAX);
        assert_eq!(parse(&long), Err(SignerChainsError::TooMany));
        let many = "/CN=a\n/CN=b\n--NEXT CHAIN--\n".repeat(SIGNER_CHAINS_MAX + 1);
        assert_eq!(parse(&many), Err(SignerChainsError::TooMany));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(content: Vec<u8>) {
            let _ = SignerChains::parse(&content);
        }

        #[test]
        fn any_chain_names_itself(
            lines in prop::collection::vec("/DC=[a-z]{1,8}/CN=[a-zA-Z0-9 .]{0,8}[a-z]", 2..8)
        ) {
            let chains = SignerChains::parse(lines.join("\n").as_bytes());
            let mut path: Vec<NameParts> = lines.iter().filter_map(|line| NameParts::parse(line)).collect();
            path.dedup();
            if path.len() > 1 {
                prop_assert!(chains.unwrap().name(&path));
            } else {
                prop_assert!(chains.is_err());
            }
        }
    }
}
