//! What a client wants of the node that it dials: its Hello says so. Also what a gateway says to a node that it calls.

use exoskel_identity::{Identity, Role};

use crate::codec::{Reader, over, put_text};
use crate::error::CodecError;
use crate::handshake::fields::{NAME_BYTES_MAX, put_identity, read_identity, unknown};
use crate::handshake::process::ProcessNumber;

/// The bytes of a [`Ticket`].
pub const TICKET_BYTES: usize = 16;
/// The most nodes that a request to be connected can have passed: who asked first, and gateways.
pub const HOPS_MAX: usize = 4;

/// What a client wants of the node that it dials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Purpose {
    /// A session with this node.
    #[default]
    Session,
    /// A tunnel to another node, through this gateway.
    Connect {
        /// The name in the certificate of the node to reach.
        node: String,
        /// Which process of that node; any of them, if nobody says.
        process: Option<ProcessNumber>,
        /// For whom a gateway asks: who asked first, then each gateway that passed the request on. Empty where a node asks for itself.
        ///
        /// # Security
        /// The word of the gateway that asks, and no proof.
        on_behalf_of: Vec<Identity>,
    },
    /// The client can't be dialled: the gateway keeps this connection, and calls the client over it.
    Register,
    /// The client was called, and dials back.
    Callback {
        /// From the [`GatewayCall`].
        ticket: Ticket,
    },
}

/// A random number that names one call of a gateway. It is good once, for the node that was called.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub [u8; TICKET_BYTES]);

impl core::fmt::Debug for Ticket {
    /// Without the number: who has it and the node's key can answer the call.
    fn fmt(&self, formatter: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        formatter.write_str("Ticket")
    }
}

/// What a gateway says to a registered node: dial back with this ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayCall {
    /// What the node's Hello has to state.
    pub ticket: Ticket,
    /// Who wants to reach the node, as the gateway says.
    pub asked_by: Identity,
}

impl GatewayCall {
    /// The bytes of the message.
    ///
    /// # Errors
    /// [`CodecError`] when the name is over its limit.
    pub fn encode(&self) -> Result<Vec<u8>, CodecError> {
        let mut out = self.ticket.0.to_vec();
        put_identity(&mut out, &self.asked_by)?;
        Ok(out)
    }

    /// Reads the message.
    ///
    /// # Errors
    /// [`CodecError`] when it is malformed.
    pub fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let call = Self {
            ticket: Ticket(reader.array("ticket")?),
            asked_by: read_identity(&mut reader)?,
        };
        reader.end("call")?;
        Ok(call)
    }
}

pub(super) fn put_purpose(out: &mut Vec<u8>, purpose: &Purpose) -> Result<(), CodecError> {
    match purpose {
        Purpose::Session => out.push(0),
        Purpose::Connect {
            node,
            process,
            on_behalf_of,
        } => {
            out.push(1);
            put_text(out, "name of a node", node, NAME_BYTES_MAX)?;
            match process {
                None => out.push(0),
                Some(process) => {
                    out.push(1);
                    out.extend_from_slice(process.bytes());
                }
            }
            check_hops(on_behalf_of.len())?;
            out.push(on_behalf_of.len() as u8);
            for identity in on_behalf_of {
                put_identity(out, identity)?;
            }
        }
        Purpose::Register => out.push(2),
        Purpose::Callback { ticket } => {
            out.push(3);
            out.extend_from_slice(&ticket.0);
        }
    }
    Ok(())
}

pub(super) fn read_purpose(reader: &mut Reader<'_>) -> Result<Purpose, CodecError> {
    match reader.u8("purpose")? {
        0 => Ok(Purpose::Session),
        1 => {
            let node = reader.text("name of a node", NAME_BYTES_MAX)?;
            // Of all roles, a manager may have each kind of name.
            let node = Identity::from_statement(Role::Manager, node);
            let node = node.map_err(|_| CodecError::Text {
                what: "name of a node",
            })?;
            let process = match reader.u8("whether a process is named")? {
                0 => None,
                1 => Some(ProcessNumber::new(reader.array("process number")?)),
                other => return Err(unknown("whether a process is named", other)),
            };
            let hops = usize::from(reader.u8("number of hops")?);
            check_hops(hops)?;
            let on_behalf_of = (0..hops).map(|_| read_identity(reader));
            Ok(Purpose::Connect {
                node: node.name,
                process,
                on_behalf_of: on_behalf_of.collect::<Result<_, _>>()?,
            })
        }
        2 => Ok(Purpose::Register),
        3 => Ok(Purpose::Callback {
            ticket: Ticket(reader.array("ticket")?),
        }),
        other => Err(unknown("purpose", other)),
    }
}

fn check_hops(hops: usize) -> Result<(), CodecError> {
    if hops > HOPS_MAX {
        return Err(over("number of hops", hops as u64, HOPS_MAX as u64));
    }
    Ok(())
}
