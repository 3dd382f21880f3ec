//! Which server of which virtual organisation gave attributes: `VO://HOST:PORT`.

use super::error::AttributeProblem;
use super::fqan::is_part;
use crate::limits::NAME_BYTES_MAX;
use crate::peer_text::PeerText;

/// The policy authority of an attribute certificate (GFD.182 section 3.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyAuthority<'a> {
    /// The virtual organisation.
    pub(crate) vo: &'a str,
    /// Its server.
    pub(crate) host: &'a str,
}

impl<'a> PolicyAuthority<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, AttributeProblem> {
        let bad = || AttributeProblem::BadPolicyAuthority {
            got: PeerText::new(text),
        };
        let (vo, server) = text.split_once("://").ok_or_else(bad)?;
        let (host, port) = server.split_once(':').ok_or_else(bad)?;
        // Both become parts of the names of files.
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let well_formed = is_part(vo)
            && vo.len() <= NAME_BYTES_MAX
            && !host.is_empty()
            && host.len() <= NAME_BYTES_MAX
            && !host.starts_with('.')
            && host.bytes().all(is_host)
            && !port.is_empty()
            && port.bytes().all(|byte| byte.is_ascii_digit());
        well_formed.then_some(Self { vo, host }).ok_or_else(bad)
    }

    /// Whether a file of the organisation's directory is the server's `.lsc`.
    pub(crate) fn is_served_by(&self, file: &str) -> bool {
        let host = file.strip_suffix(".lsc");
        host.is_some_and(|host| host.eq_ignore_ascii_case(self.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn organisation_and_host_come_apart() {
        let parsed = PolicyAuthority::parse("vo.example.org://voms1.example.org:15000").unwrap();
        assert_eq!(
            (parsed.vo, parsed.host),
            ("vo.example.org", "voms1.example.org")
        );
        assert!(parsed.is_served_by("VOMS1.example.org.lsc"));
        assert!(!parsed.is_served_by("voms1.example.org.pem"));
        assert!(!parsed.is_served_by("voms2.example.org.lsc"));
        for bad in [
            "",
            "vo",
            "://h:1",
            "vo://h",
            "vo://:1",
            "vo://h:",
            "vo://h:x",
            "../vo://h:1",
            "vo://../h:1",
            "vo/x://h:1",
            "vo://h/x:1",
            "..://h:1",
            "vo://.h:1",
            "vo://h:1/x",
        ] {
            assert!(PolicyAuthority::parse(bad).is_err(), "{bad}");
        }
    }
}
