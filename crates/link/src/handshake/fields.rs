//! The fields that Hello and the answer are made of.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use core::time::Duration;

use exoskel_identity::{Identity, PeerText, Role};

use crate::codec::{Reader, over, put_text};
use crate::control::read_limited;
use crate::error::CodecError;
use crate::handshake::{Path, ProcessNumber, RefuseReason, Statement};
use crate::keys::CipherSuite;
use crate::limits::Limits;

/// The most versions, and the most properties.
const PAIRS_MAX: usize = 64;
/// The longest name of a version or property.
const KEY_BYTES_MAX: usize = 100;
/// The longest value of a version or property.
const VALUE_BYTES_MAX: usize = 1000;
/// The longest name of a node: a host name, or a distinguished name of a grid.
pub(super) const NAME_BYTES_MAX: usize = exoskel_identity::limits::SUBJECT_BYTES_MAX;

type Pairs = Vec<(PeerText, PeerText)>;

pub(crate) fn put_identity(out: &mut Vec<u8>, identity: &Identity) -> Result<(), CodecError> {
    out.push(match identity.role {
        Role::Manager => 1,
        Role::Worker => 2,
        Role::Gateway => 3,
        Role::Agent => 4,
        Role::Peer => 5,
    });
    put_text(out, "name", &identity.name, NAME_BYTES_MAX)
}

pub(crate) fn read_identity(reader: &mut Reader<'_>) -> Result<Identity, CodecError> {
    let role = match reader.u8("role")? {
        1 => Role::Manager,
        2 => Role::Worker,
        3 => Role::Gateway,
        4 => Role::Agent,
        5 => Role::Peer,
        other => return Err(unknown("role", other)),
    };
    let name = reader.text("name", NAME_BYTES_MAX)?;
    Identity::from_statement(role, name).map_err(|_| CodecError::Text { what: "name" })
}

pub(super) fn put_ciphers(out: &mut Vec<u8>, ciphers: &[CipherSuite]) -> Result<(), CodecError> {
    let most = CipherSuite::ALL.len();
    if ciphers.len() > most {
        return Err(over("number of ciphers", ciphers.len() as u64, most as u64));
    }
    out.push(ciphers.len() as u8);
    out.extend(ciphers.iter().map(|cipher| cipher.code()));
    Ok(())
}

/// Reads a list of ciphers. Numbers that are unknown are skipped by being refused: a version that knows more ciphers is
/// another protocol version.
pub(super) fn read_ciphers(reader: &mut Reader<'_>) -> Result<Vec<CipherSuite>, CodecError> {
    let count = usize::from(reader.u8("number of ciphers")?);
    if count > CipherSuite::ALL.len() {
        return Err(over(
            "number of ciphers",
            count as u64,
            CipherSuite::ALL.len() as u64,
        ));
    }
    (0..count).map(|_| read_cipher(reader)).collect()
}

pub(super) fn read_cipher(reader: &mut Reader<'_>) -> Result<CipherSuite, CodecError> {
    let code = reader.u8("cipher")?;
    CipherSuite::from_code(code).ok_or_else(|| unknown("cipher", code))
}

/// Writes a statement but for its identity, which stands in another place in Hello than what else is said.
pub(super) fn put_statement(out: &mut Vec<u8>, statement: &Statement) -> Result<(), CodecError> {
    let limits = statement.limits;
    for (what, bytes) in [
        ("message_bytes_max", limits.message_bytes_max),
        ("credit_bytes", limits.credit_bytes),
    ] {
        if bytes > Limits::BYTES_CEILING {
            return Err(over(what, bytes, Limits::BYTES_CEILING));
        }
        out.extend_from_slice(&bytes.to_be_bytes());
    }
    out.extend_from_slice(
        &limits
            .bulk_parts_max
            .min(Limits::BULK_PARTS_CEILING)
            .to_be_bytes(),
    );
    out.extend_from_slice(&limits.links_max.min(Limits::LINKS_CEILING).to_be_bytes());
    let milliseconds = statement.dead_after.as_millis();
    let Ok(milliseconds) = u32::try_from(milliseconds) else {
        return Err(over("dead_after", u64::MAX, u64::from(u32::MAX)));
    };
    out.extend_from_slice(&milliseconds.to_be_bytes());
    put_path(out, statement.path);
    out.extend_from_slice(&statement.policy_generation.to_be_bytes());
    out.extend_from_slice(&statement.job.to_be_bytes());
    out.extend_from_slice(statement.process.bytes());
    put_pairs(out, &statement.versions)?;
    put_pairs(out, &statement.properties)
}

pub(super) fn read_statement(
    reader: &mut Reader<'_>,
    identity: Identity,
) -> Result<Statement, CodecError> {
    let message_bytes_max = read_limited(reader, "message_bytes_max", Limits::BYTES_CEILING)?;
    let credit_bytes = read_limited(reader, "credit_bytes", Limits::BYTES_CEILING)?;
    let bulk_parts_max = reader.u16("bulk_parts_max")?;
    let links_max = reader.u32("links_max")?;
    for (what, got, limit) in [
        (
            "bulk_parts_max",
            u32::from(bulk_parts_max),
            u32::from(Limits::BULK_PARTS_CEILING),
        ),
        ("links_max", links_max, Limits::LINKS_CEILING),
    ] {
        if got > limit {
            return Err(over(what, got.into(), limit.into()));
        }
    }
    Ok(Statement {
        identity,
        limits: Limits {
            message_bytes_max,
            bulk_parts_max,
            links_max,
            credit_bytes,
            queued_bytes_max: 0,
        },
        dead_after: Duration::from_millis(reader.u32("dead_after")?.into()),
        path: read_path(reader)?,
        policy_generation: reader.u64("policy generation")?,
        job: reader.u32("job")?,
        process: ProcessNumber::new(reader.array("process number")?),
        versions: read_pairs(reader)?,
        properties: read_pairs(reader)?,
    })
}

fn put_path(out: &mut Vec<u8>, path: Path) {
    match path {
        Path::Relayed => out.push(0),
        Path::SameHost { witness } => {
            out.push(1);
            out.extend_from_slice(&witness);
        }
        Path::Network { local, remote } => {
            out.push(2);
            for address in [local, remote] {
                let ip = match address.ip() {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                    IpAddr::V6(ip) => ip,
                };
                out.extend_from_slice(&ip.octets());
                out.extend_from_slice(&address.port().to_be_bytes());
            }
        }
    }
}

fn read_path(reader: &mut Reader<'_>) -> Result<Path, CodecError> {
    match reader.u8("path")? {
        0 => Ok(Path::Relayed),
        1 => Ok(Path::SameHost {
            witness: reader.array("witness")?,
        }),
        2 => Ok(Path::Network {
            local: read_address(reader)?,
            remote: read_address(reader)?,
        }),
        other => Err(unknown("path", other)),
    }
}

fn read_address(reader: &mut Reader<'_>) -> Result<SocketAddr, CodecError> {
    let ip = IpAddr::V6(Ipv6Addr::from(reader.u128("address")?)).to_canonical();
    Ok(SocketAddr::new(ip, reader.u16("port")?))
}

fn put_pairs(out: &mut Vec<u8>, pairs: &Pairs) -> Result<(), CodecError> {
    if pairs.len() > PAIRS_MAX {
        return Err(over(
            "number of pairs",
            pairs.len() as u64,
            PAIRS_MAX as u64,
        ));
    }
    out.push(pairs.len() as u8);
    for (name, value) in pairs {
        put_text(
            out,
            "name of a pair",
            name.raw_for_comparison(),
            KEY_BYTES_MAX,
        )?;
        put_text(
            out,
            "value of a pair",
            value.raw_for_comparison(),
            VALUE_BYTES_MAX,
        )?;
    }
    Ok(())
}

fn read_pairs(reader: &mut Reader<'_>) -> Result<Pairs, CodecError> {
    let count = usize::from(reader.u8("number of pairs")?);
    if count > PAIRS_MAX {
        return Err(over("number of pairs", count as u64, PAIRS_MAX as u64));
    }
    let mut pairs = Pairs::new();
    for _ in 0..count {
        let name = reader.text("name of a pair", KEY_BYTES_MAX)?;
        let value = reader.text("value of a pair", VALUE_BYTES_MAX)?;
        // Two values for one name would mean one thing to one reader and another to the next.
        if pairs.iter().any(|(seen, _)| seen.is(name)) {
            return Err(CodecError::Text {
                what: "list with a name that occurs twice",
            });
        }
        pairs.push((name.into(), value.into()));
    }
    Ok(pairs)
}

pub(super) fn put_reason(out: &mut Vec<u8>, reason: &RefuseReason) -> Result<(), CodecError> {
    out.push(match reason {
        RefuseReason::Version { .. } => 1,
        RefuseReason::Role => 2,
        RefuseReason::NotAllowed => 3,
        RefuseReason::Certificate => 4,
        RefuseReason::Busy => 5,
        RefuseReason::Limit => 6,
        RefuseReason::Malformed => 7,
        RefuseReason::Cipher => 8,
        RefuseReason::Unreachable => 9,
        RefuseReason::OtherProcess => 10,
    });
    if let RefuseReason::Version { of, expected, got } = reason {
        for text in [of, expected, got] {
            put_text(out, "version", text.raw_for_comparison(), KEY_BYTES_MAX)?;
        }
    }
    Ok(())
}

pub(super) fn read_reason(reader: &mut Reader<'_>) -> Result<RefuseReason, CodecError> {
    Ok(match reader.u8("reason of a refusal")? {
        1 => RefuseReason::Version {
            of: reader.text("version", KEY_BYTES_MAX)?.into(),
            expected: reader.text("version", KEY_BYTES_MAX)?.into(),
            got: reader.text("version", KEY_BYTES_MAX)?.into(),
        },
        2 => RefuseReason::Role,
        3 => RefuseReason::NotAllowed,
        4 => RefuseReason::Certificate,
        5 => RefuseReason::Busy,
        6 => RefuseReason::Limit,
        7 => RefuseReason::Malformed,
        8 => RefuseReason::Cipher,
        9 => RefuseReason::Unreachable,
        10 => RefuseReason::OtherProcess,
        other => return Err(unknown("reason of a refusal", other)),
    })
}

pub(super) fn unknown(what: &'static str, got: u8) -> CodecError {
    CodecError::Unknown {
        what,
        got: got.into(),
    }
}
