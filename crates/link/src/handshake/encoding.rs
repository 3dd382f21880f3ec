//! Hello and the answer as bytes. Everything has a limit, and everything has one spelling.

use crate::codec::{Reader, fitting_text, over, put_text};
use crate::control::{put_protections, read_protections};
use crate::error::CodecError;
use crate::handshake::fields::{
    Common, put_ciphers, put_common, put_identity, put_reason, read_cipher, read_ciphers,
    read_common, read_identity, read_reason, unknown,
};
use crate::handshake::{
    Accept, Answer, HANDSHAKE_BYTES_MAX, HandshakeError, Hello, PROTOCOL, Refuse,
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
        put_identity(&mut out, &self.identity)?;
        put_protections(&mut out, self.floors);
        put_protections(&mut out, self.floors_unproven);
        put_ciphers(&mut out, &self.ciphers)?;
        put_common(
            &mut out,
            Common {
                limits: self.limits,
                dead_after: self.dead_after,
                path: self.path,
                policy_generation: self.policy_generation,
                group: self.group,
                versions: self.versions.clone(),
                properties: self.properties.clone(),
            },
        )?;
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
        let floors = read_protections(&mut reader)?;
        let floors_unproven = read_protections(&mut reader)?;
        let ciphers = read_ciphers(&mut reader)?;
        let common = read_common(&mut reader)?;
        reader.end("hello")?;
        Ok(Self {
            protocol: PROTOCOL,
            identity,
            floors,
            floors_unproven,
            ciphers,
            limits: common.limits,
            dead_after: common.dead_after,
            versions: common.versions,
            path: common.path,
            policy_generation: common.policy_generation,
            group: common.group,
            properties: common.properties,
        })
    }
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
                put_identity(&mut out, &accept.identity)?;
                put_protections(&mut out, accept.protections);
                out.push(accept.cipher.code());
                put_common(
                    &mut out,
                    Common {
                        limits: accept.limits,
                        dead_after: accept.dead_after,
                        path: accept.path,
                        policy_generation: accept.policy_generation,
                        group: accept.group,
                        versions: accept.versions.clone(),
                        properties: accept.properties.clone(),
                    },
                )?;
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
                let common = read_common(&mut reader)?;
                Self::Accept(Accept {
                    identity,
                    protections,
                    cipher,
                    limits: common.limits,
                    dead_after: common.dead_after,
                    versions: common.versions,
                    path: common.path,
                    policy_generation: common.policy_generation,
                    group: common.group,
                    properties: common.properties,
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
