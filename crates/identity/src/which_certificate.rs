//! Which certificate a message is about.

use std::borrow::Cow;
use std::fmt;

use crate::peer_text::PeerText;

/// A certificate in a message: where it stands in the chain and what it calls itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WhichCertificate {
    /// 0 is the leaf; nothing for a certificate of the trust directory, which the peer did not send.
    pub position: Option<usize>,
    /// What it calls itself.
    pub subject: PeerText,
}

impl WhichCertificate {
    /// A certificate that can't be read as a whole: with its subject, where that much can be read.
    pub(crate) fn unread(position: usize, subject: Option<PeerText>) -> Self {
        Self {
            position: Some(position),
            subject: subject.unwrap_or_else(|| PeerText::new("unreadable subject")),
        }
    }
}

impl fmt::Display for WhichCertificate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind: Cow<'_, str> = match self.position {
            Some(0) => "the leaf certificate".into(),
            Some(position) => format!("certificate {position} of the chain").into(),
            None => "the trust directory's certificate".into(),
        };
        write!(formatter, "{kind} {}", self.subject)
    }
}
