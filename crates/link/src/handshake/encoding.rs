//! Hello and the answer as bytes. Everything has a limit, and everything has one spelling.

use exoskel_identity::Role;

use crate::codec::{Reader, fitting_text, over, put_text};
use crate::control::{put_protections, read_protections};
use crate::error::CodecError;
use crate::handshake::fields::{
    put_ciphers, put_identity, put_reason, put_statement, read_cipher, read_ciphers, read_identity,
    read_reason, read_statement, unknown,
};
use crate::handshake::purpose::{put_purpose, read_purpose};
use crate::handshake::{
    Accept, Answer, HANDSHAKE_BYTES_MAX, HandshakeError, Hello, MinimumProtections, PROTOCOL,
    Refuse,
};

/// What every Hello and answer begins with, whatever the version.
const MAGIC: &[u8; 8] = b"exoskel\0";
/// The longest text of a refusal.
const TEXT_BYTES_MAX: usize = 4000;

impl Hello {
    /// The bytes of the message.
    ///
    /// # Errors
    /// [`CodecError`] when something is over its limit.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        let mut out = start(self.protocol);
        put_identity(&mut out, &self.statement.identity)?;
        put_protections(&mut out, self.minimum.proven);
        put_protections(&mut out, self.minimum.unproven);
        put_ciphers(&mut out, &self.ciphers)?;
        put_statement(&mut out, &self.statement)?;
        put_purpose(&mut out, &self.purpose)?;
        finish(out)
    }

    /// Reads the message.
    ///
    /// # Errors
    /// [`HandshakeError::Protocol`] when it is of another version, whose rest is not looked at;
    /// [`HandshakeError::Codec`] when it is malformed.
    pub fn read(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut reader = begin(bytes)?;
        let identity = read_identity(&mut reader)?;
        let minimum = MinimumProtections {
            proven: read_protections(&mut reader)?,
            unproven: read_protections(&mut reader)?,
        };
        let ciphers = read_ciphers(&mut reader)?;
        let statement = read_statement(&mut reader, identity)?;
        let purpose = read_purpose(&mut reader)?;
        reader.end("hello")?;
        Ok(Self {
            protocol: PROTOCOL,
            statement,
            minimum,
            ciphers,
            purpose,
        })
    }
}

/// The role that a Hello states, if it is one as far as that.
pub(crate) fn stated_role(hello: &[u8]) -> Option<Role> {
    let mut reader = begin(hello).ok()?;
    let identity = read_identity(&mut reader).ok()?;
    Some(identity.role)
}

impl Answer {
    /// The bytes of the message.
    ///
    /// # Errors
    /// [`CodecError`] when something is over its limit.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        let mut out = start(PROTOCOL);
        match self {
            Self::Accept(accept) => {
                out.push(1);
                put_identity(&mut out, &accept.statement.identity)?;
                put_protections(&mut out, accept.protections);
                out.push(accept.cipher.code());
                put_statement(&mut out, &accept.statement)?;
            }
            Self::Refuse(refuse) => {
                out.push(2);
                put_reason(&mut out, &refuse.reason)?;
                let text = fitting_text(refuse.text.raw_for_comparison(), TEXT_BYTES_MAX);
                put_text(&mut out, "text of a refusal", &text, TEXT_BYTES_MAX)?;
            }
        }
        finish(out)
    }

    /// Reads the message.
    ///
    /// # Errors
    /// As [`Hello::read`].
    pub fn read(bytes: &[u8]) -> Result<Self, HandshakeError> {
        let mut reader = begin(bytes)?;
        let answer = match reader.u8("answer")? {
            1 => {
                let identity = read_identity(&mut reader)?;
                let protections = read_protections(&mut reader)?;
                let cipher = read_cipher(&mut reader)?;
                Self::Accept(Accept {
                    statement: read_statement(&mut reader, identity)?,
                    protections,
                    cipher,
                })
            }
            2 => Self::Refuse(Refuse {
                reason: read_reason(&mut reader)?,
                text: reader.text("text of a refusal", TEXT_BYTES_MAX)?.into(),
            }),
            other => return Err(unknown("answer", other).into()),
        };
        reader.end("answer")?;
        Ok(answer)
    }
}

fn start(protocol: u16) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&protocol.to_be_bytes());
    out
}

fn finish(out: Vec<u8>) -> Result<Vec<u8>, CodecError> {
    if out.len() > HANDSHAKE_BYTES_MAX {
        return Err(over(
            "handshake message",
            out.len() as u64,
            HANDSHAKE_BYTES_MAX as u64,
        ));
    }
    Ok(out)
}

fn begin(bytes: &[u8]) -> Result<Reader<'_>, HandshakeError> {
    if bytes.len() > HANDSHAKE_BYTES_MAX {
        let error = over(
            "handshake message",
            bytes.len() as u64,
            HANDSHAKE_BYTES_MAX as u64,
        );
        return Err(error.into());
    }
    let mut reader = Reader::new(bytes);
    if reader.take("handshake message", MAGIC.len())? != MAGIC {
        return Err(unknown("first byte of a handshake message", bytes[0]).into());
    }
    let got = reader.u16("protocol version")?;
    if got != PROTOCOL {
        return Err(HandshakeError::Protocol {
            got,
            expected: PROTOCOL,
        });
    }
    Ok(reader)
}
