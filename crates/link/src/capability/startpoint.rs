//! The sending end as bytes and as text.

use core::fmt;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::digest;
use data_encoding::BASE64URL_NOPAD;
use exoskel_identity::{Identity, PeerText};
use zeroize::Zeroizing;

use super::chain::{ChainTag, TAG_BYTES};
use super::conditions::Conditions;
use super::{
    Allowance, CapabilityError, Caveat, HINT_BYTES_MAX, HINTS_MAX, KEY_ID_BYTES, Right,
    STARTPOINT_BYTES_MAX,
};
use crate::codec::{Reader, over, put_text};
use crate::control::NAME_BYTES_MAX;
use crate::error::CodecError;
use crate::handshake::{ProcessNumber, put_identity, read_identity};
use crate::protection::Protection;

/// The version of the bytes.
const VERSION: u8 = 1;
/// What every startpoint's text begins with.
const SCHEME: &str = "exo://";
/// How much of the bytes' SHA-256 stands behind them in the text: enough for mistakes, and no protection against anybody.
const CHECKSUM_BYTES: usize = 4;
/// The longest text.
const TEXT_BYTES_MAX: usize =
    SCHEME.len() + ((STARTPOINT_BYTES_MAX + CHECKSUM_BYTES) * 4).div_ceil(3);

/// The sending end of links to one endpoint: it can be copied, narrowed and passed on.
///
/// # Security
/// It is a secret where it is a bearer's, and should be kept like one where it isn't: among those whom its
/// holders' patterns let in, whoever has the bytes has the right. Neither form for people shows the tag;
/// [`encode`](Self::encode) and [`text`](Self::text) hold it.
///
/// The node and the hints don't stand under the tag. Whoever changes them changes whom the next holder reaches, and gets
/// nothing of the right by it: a proof is made for the session with whom it was shown to.
#[derive(Clone)]
pub struct Startpoint {
    node: Identity,
    hints: Vec<String>,
    endpoint: String,
    process: ProcessNumber,
    conditions: Conditions,
    tag: ChainTag,
}

impl Startpoint {
    /// Every startpoint comes from here: what is in it fits.
    pub(super) fn new(
        node: Identity,
        hints: Vec<String>,
        endpoint: String,
        process: ProcessNumber,
        conditions: Conditions,
        tag: ChainTag,
    ) -> Result<Self, CapabilityError> {
        // Anybody can write an identity; a reader takes one only as a certificate could prove it.
        Identity::from_statement(node.role, &node.name)
            .map_err(|_| CodecError::Text { what: "name" })?;
        let startpoint = Self {
            node,
            hints,
            endpoint,
            process,
            conditions,
            tag,
        };
        startpoint.put(&mut Vec::new())?;
        Ok(startpoint)
    }

    /// Whom to expect at the other end.
    pub fn node(&self) -> &Identity {
        &self.node
    }

    /// Where that node may be found, the best first.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// The endpoint's name.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Which process of that node has the endpoint: no other one knows its key.
    pub fn process(&self) -> ProcessNumber {
        self.process
    }

    /// Which key of the endpoint it rests on.
    pub fn key_id(&self) -> &[u8; KEY_ID_BYTES] {
        &self.conditions.key_id
    }

    /// Its number among those of its key, by which its owner revokes it. Narrowed copies have the same one.
    pub fn number(&self) -> u64 {
        self.conditions.number
    }

    /// Whether whoever holds it has the right.
    pub fn is_bearer(&self) -> bool {
        self.conditions.bearer
    }

    /// What it is restricted to, in the order in which it was added.
    pub fn caveats(&self) -> &[Caveat] {
        &self.conditions.caveats
    }

    /// What it allows, all caveats together, as far as it is genuine.
    pub fn allowance(&self) -> Allowance {
        self.conditions.allowance()
    }

    /// The protection that a link has to be asked for with: that of the caveats, and `encrypted` for a bearer's between hosts.
    pub fn needs(&self, same_host: bool) -> Protection {
        self.conditions.needs(same_host)
    }

    /// A copy that allows less. Nobody is asked for it.
    ///
    /// # Errors
    /// [`CapabilityError`] when there are too many caveats already, or no handler is left.
    pub fn attenuate(&self, caveat: Caveat) -> Result<Self, CapabilityError> {
        let mut encoded = Vec::new();
        caveat.put(&mut encoded)?;
        let mut narrower = self.clone();
        narrower.tag = self.tag.narrowed(&encoded);
        narrower.conditions.caveats.push(caveat);
        narrower.put(&mut Vec::new())?;
        narrower.conditions.check_useful()?;
        Ok(narrower)
    }

    /// A copy that says other places to look at. It allows the same.
    ///
    /// # Errors
    /// [`CapabilityError::Malformed`] when there are more than [`HINTS_MAX`], or one can't travel.
    pub fn with_hints(&self, hints: Vec<String>) -> Result<Self, CapabilityError> {
        let other = Self {
            hints,
            ..self.clone()
        };
        other.put(&mut Vec::new())?;
        Ok(other)
    }

    /// What is shown to open one link of one session.
    pub fn right(&self, binding: &[u8; TAG_BYTES], link: u32) -> Right {
        Right {
            conditions: self.conditions.clone(),
            proof: self.tag.proof(binding, link),
        }
    }

    /// The startpoint's bytes, at most [`STARTPOINT_BYTES_MAX`].
    ///
    /// # Security
    /// They hold the tag.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out)
            .expect("what a startpoint is made of was checked when it was made or read");
        out
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), CapabilityError> {
        // Long enough at once, or the tag would stay behind where the bytes stood before.
        out.reserve_exact(STARTPOINT_BYTES_MAX);
        out.push(VERSION);
        put_identity(out, &self.node)?;
        let count = self.hints.len();
        if count > HINTS_MAX {
            return Err(over("number of hints", count as u64, HINTS_MAX as u64).into());
        }
        out.push(count as u8);
        for hint in &self.hints {
            put_text(out, "hint", hint, HINT_BYTES_MAX)?;
        }
        put_text(out, "endpoint name", &self.endpoint, NAME_BYTES_MAX)?;
        out.extend_from_slice(self.process.bytes());
        self.conditions.put(out)?;
        out.extend_from_slice(self.tag.bytes());
        Ok(())
    }

    /// Reads a startpoint. What is taken is [encoded](Self::encode) to the same bytes. Whether it is genuine, its
    /// endpoint says.
    ///
    /// # Errors
    /// [`CapabilityError`] says what is wrong with the bytes.
    pub fn read(bytes: &[u8]) -> Result<Self, CapabilityError> {
        if bytes.len() > STARTPOINT_BYTES_MAX {
            let (got, limit) = (bytes.len() as u64, STARTPOINT_BYTES_MAX as u64);
            return Err(over("length of a startpoint", got, limit).into());
        }
        let mut reader = Reader::new(bytes);
        let version = reader.u8("version")?;
        if version != VERSION {
            return Err(CapabilityError::Version { got: version });
        }
        let node = read_identity(&mut reader)?;
        let count = usize::from(reader.u8("number of hints")?);
        if count > HINTS_MAX {
            return Err(over("number of hints", count as u64, HINTS_MAX as u64).into());
        }
        let hints = (0..count).map(|_| Ok(reader.text("hint", HINT_BYTES_MAX)?.to_owned()));
        let hints = hints.collect::<Result<_, CapabilityError>>()?;
        let startpoint = Self {
            node,
            hints,
            endpoint: reader.text("endpoint name", NAME_BYTES_MAX)?.to_owned(),
            process: ProcessNumber::new(reader.array("process number")?),
            conditions: Conditions::read(&mut reader)?,
            tag: ChainTag::from_bytes(reader.array("tag")?),
        };
        reader.end("startpoint")?;
        Ok(startpoint)
    }

    /// The startpoint in one word, for files, arguments and messages: below 512 bytes unless names are long.
    ///
    /// # Security
    /// It holds the tag.
    pub fn text(&self) -> String {
        let mut bytes = Zeroizing::new(self.encode());
        let checksum = checksum(&bytes);
        bytes.extend_from_slice(&checksum);
        let mut text = SCHEME.to_owned();
        BASE64URL_NOPAD.encode_append(&bytes, &mut text);
        text
    }

    /// Reads what [`text`](Self::text) writes, and nothing else.
    ///
    /// # Errors
    /// [`CapabilityError`] says what is wrong, and never repeats the text.
    pub fn parse(text: &str) -> Result<Self, CapabilityError> {
        let Some(encoded) = text.strip_prefix(SCHEME) else {
            return Err(CapabilityError::NotAStartpoint);
        };
        if text.len() > TEXT_BYTES_MAX {
            let (got, limit) = (text.len() as u64, TEXT_BYTES_MAX as u64);
            return Err(over("length of a startpoint's text", got, limit).into());
        }
        let bytes = match BASE64URL_NOPAD.decode(encoded.as_bytes()) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) => {
                return Err(CapabilityError::BadCharacter {
                    place: SCHEME.len() + error.position,
                });
            }
        };
        match bytes.split_last_chunk() {
            Some((bytes, stated)) if checksum(bytes) == *stated => Self::read(bytes),
            _ => Err(CapabilityError::Damaged),
        }
    }
}

fn checksum(bytes: &[u8]) -> [u8; CHECKSUM_BYTES] {
    let hash = digest::digest(&digest::SHA256, bytes);
    let mut checksum = [0; CHECKSUM_BYTES];
    checksum.copy_from_slice(&hash.as_ref()[..CHECKSUM_BYTES]);
    checksum
}

impl PartialEq for Startpoint {
    fn eq(&self, other: &Self) -> bool {
        self.node == other.node
            && self.hints == other.hints
            && self.endpoint == other.endpoint
            && self.process == other.process
            && self.conditions == other.conditions
            && verify_slices_are_equal(self.tag.bytes(), other.tag.bytes()).is_ok()
    }
}

impl Eq for Startpoint {}

/// Which endpoint of which node, and the caveats.
impl fmt::Display for Startpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let endpoint = PeerText::new(&self.endpoint);
        write!(formatter, "startpoint to {endpoint} of {}", self.node)?;
        if self.conditions.bearer {
            formatter.write_str(", for whoever holds it")?;
        }
        for caveat in &self.conditions.caveats {
            write!(formatter, ", {caveat}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Startpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Startpoint({self})")
    }
}
