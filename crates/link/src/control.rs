//! The messages of link 0: what two sessions say to each other about links, credit, keys and the end.

use crate::codec::{Reader, fitting_text, over, put_text};
use crate::error::{CloseReason, CodecError, LinkRefusal};
use crate::limits::Limits;
use crate::message::LinkId;
use crate::protection::{Protection, Protections, TrafficClass};
use crate::resumption::{
    LinkLife, Resumption, put_life, put_resumption, read_life, read_resumption,
};

/// The longest name of an endpoint or handler.
pub const NAME_BYTES_MAX: usize = 100;
/// The most handlers of an endpoint: their names must fit in one Control record.
pub const HANDLERS_MAX: usize = 128;
/// The most bytes of a right in LinkOpen.
pub(crate) const RIGHT_BYTES_MAX: usize = 8 * 1024;
/// The most handlers that a LinkOpen names: early messages call few.
pub const EARLY_HANDLERS_MAX: usize = 8;
/// The longest text of a reason.
pub(crate) const REASON_BYTES_MAX: usize = 1000;

/// One message of link 0; a Control record holds exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    /// A startpoint of the sender wants to reach an endpoint of the receiver. States the least protection of the link, which is never
    /// below that of its class, and what the sender is allowed to do by: nothing, or a right that the endpoint's owner reads.
    LinkOpen {
        link: LinkId,
        job: u32,
        class: TrafficClass,
        protection: Protection,
        endpoint: String,
        right: Vec<u8>,
        life: LinkLife,
        /// The handlers that messages call which don't wait for the answer.
        early: Vec<String>,
    },
    /// The protection is that of LinkOpen, or stricter. Without a resumption the link ends with its session.
    LinkAccept {
        link: LinkId,
        protection: Protection,
        handlers: Vec<String>,
        resumption: Option<Resumption>,
    },
    LinkRefuse {
        link: LinkId,
        reason: LinkRefusal,
    },
    /// The opener sends nothing more on the link.
    LinkClose {
        link: LinkId,
    },
    /// Nor does the other side; the number is free again.
    LinkClosed {
        link: LinkId,
    },
    Credit {
        link: LinkId,
        bytes: u64,
    },
    /// How many records the sender has sealed before this one, and opened.
    Heartbeat {
        sealed: u64,
        opened: u64,
    },
    /// The sender's next record is sealed with the next epoch's keys.
    KeyUpdate,
    /// These protections hold from the sender's next record on.
    Protections(Protections),
    /// This protection holds for the link from the sender's next record on.
    LinkProtection {
        link: LinkId,
        protection: Protection,
    },
    /// The endpoint's owner ends a link that it has accepted.
    LinkEnd {
        link: LinkId,
        reason: LinkRefusal,
    },
    /// The sender's last record.
    Close(CloseReason),
}

impl ControlMessage {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) -> Result<(), CodecError> {
        match self {
            Self::LinkOpen {
                link,
                job,
                class,
                protection,
                endpoint,
                right,
                life,
                early,
            } => {
                put_link(out, 1, *link);
                out.extend_from_slice(&job.to_be_bytes());
                out.extend_from_slice(&[class.code(), protection.code()]);
                put_text(out, "endpoint name", endpoint, NAME_BYTES_MAX)?;
                if right.len() > RIGHT_BYTES_MAX {
                    return Err(over("right", right.len() as u64, RIGHT_BYTES_MAX as u64));
                }
                out.extend_from_slice(&(right.len() as u16).to_be_bytes());
                out.extend_from_slice(right);
                put_life(out, life);
                put_early(out, early)?;
            }
            Self::LinkAccept {
                link,
                protection,
                handlers,
                resumption,
            } => {
                put_link(out, 2, *link);
                out.push(protection.code());
                out.extend_from_slice(&(handlers.len() as u16).to_be_bytes());
                for handler in handlers {
                    put_text(out, "handler name", handler, NAME_BYTES_MAX)?;
                }
                put_resumption(out, resumption.as_ref());
            }
            Self::LinkRefuse { link, reason } => {
                put_link(out, 3, *link);
                put_refusal(out, reason)?;
            }
            Self::LinkClose { link } => put_link(out, 4, *link),
            Self::LinkClosed { link } => put_link(out, 5, *link),
            Self::Credit { link, bytes } => {
                put_link(out, 6, *link);
                out.extend_from_slice(&bytes.to_be_bytes());
            }
            Self::Heartbeat { sealed, opened } => {
                out.push(7);
                out.extend_from_slice(&sealed.to_be_bytes());
                out.extend_from_slice(&opened.to_be_bytes());
            }
            Self::KeyUpdate => out.push(8),
            Self::Protections(protections) => {
                out.push(9);
                put_protections(out, *protections);
            }
            Self::LinkProtection { link, protection } => {
                put_link(out, 11, *link);
                out.push(protection.code());
            }
            Self::LinkEnd { link, reason } => {
                put_link(out, 12, *link);
                put_refusal(out, reason)?;
            }
            Self::Close(reason) => {
                out.push(10);
                let (code, text) = match reason {
                    CloseReason::Finished => (0, ""),
                    CloseReason::ShuttingDown => (1, ""),
                    CloseReason::Expired => (2, ""),
                    CloseReason::NotAllowed(text) => (3, text.raw_for_comparison()),
                    CloseReason::Fault(text) => (4, text.raw_for_comparison()),
                    CloseReason::Silence => (5, ""),
                };
                out.push(code);
                let text = fitting_text(text, REASON_BYTES_MAX);
                put_text(out, "reason", &text, REASON_BYTES_MAX)?;
            }
        }
        Ok(())
    }

    pub(crate) fn read(bytes: &[u8]) -> Result<Self, CodecError> {
        let mut reader = Reader::new(bytes);
        let code = reader.u8("control message")?;
        let message = match code {
            1 => Self::LinkOpen {
                link: read_link(&mut reader)?,
                job: reader.u32("job")?,
                class: read_class(&mut reader)?,
                protection: read_protection(&mut reader)?,
                endpoint: reader.text("endpoint name", NAME_BYTES_MAX)?.to_owned(),
                right: read_right(&mut reader)?,
                life: read_life(&mut reader)?,
                early: read_early(&mut reader)?,
            },
            2 => Self::LinkAccept {
                link: read_link(&mut reader)?,
                protection: read_protection(&mut reader)?,
                handlers: read_handlers(&mut reader)?,
                resumption: read_resumption(&mut reader)?,
            },
            3 => Self::LinkRefuse {
                link: read_link(&mut reader)?,
                reason: read_refusal(&mut reader)?,
            },
            4 => Self::LinkClose {
                link: read_link(&mut reader)?,
            },
            5 => Self::LinkClosed {
                link: read_link(&mut reader)?,
            },
            6 => Self::Credit {
                link: read_link(&mut reader)?,
                bytes: read_limited(&mut reader, "credit", Limits::BYTES_CEILING)?,
            },
            7 => Self::Heartbeat {
                sealed: reader.u64("sealed records")?,
                opened: reader.u64("opened records")?,
            },
            8 => Self::KeyUpdate,
            9 => Self::Protections(read_protections(&mut reader)?),
            10 => Self::Close(read_reason(&mut reader)?),
            11 => Self::LinkProtection {
                link: read_link(&mut reader)?,
                protection: read_protection(&mut reader)?,
            },
            12 => Self::LinkEnd {
                link: read_link(&mut reader)?,
                reason: read_refusal(&mut reader)?,
            },
            _ => return Err(unknown("control message", code)),
        };
        reader.end("control message")?;
        Ok(message)
    }
}

pub(crate) fn put_protections(out: &mut Vec<u8>, protections: Protections) {
    out.extend(TrafficClass::ALL.map(|class| protections.of(class).code()));
}

pub(crate) fn read_protections(reader: &mut Reader<'_>) -> Result<Protections, CodecError> {
    Ok(Protections {
        control: read_protection(reader)?,
        code: read_protection(reader)?,
        data: read_protection(reader)?,
    })
}

pub(crate) fn read_limited(
    reader: &mut Reader<'_>,
    what: &'static str,
    limit: u64,
) -> Result<u64, CodecError> {
    let got = reader.u64(what)?;
    if got > limit {
        return Err(CodecError::Limit { what, got, limit });
    }
    Ok(got)
}

fn put_link(out: &mut Vec<u8>, code: u8, link: LinkId) {
    out.push(code);
    out.extend_from_slice(&link.0.to_be_bytes());
}

fn read_link(reader: &mut Reader<'_>) -> Result<LinkId, CodecError> {
    let link = LinkId(reader.u32("link")?);
    if link == LinkId::CONTROL {
        return Err(unknown("link", 0));
    }
    Ok(link)
}

fn read_class(reader: &mut Reader<'_>) -> Result<TrafficClass, CodecError> {
    let code = reader.u8("traffic class")?;
    TrafficClass::from_code(code).ok_or_else(|| unknown("traffic class", code))
}

fn read_protection(reader: &mut Reader<'_>) -> Result<Protection, CodecError> {
    let code = reader.u8("protection")?;
    Protection::from_code(code).ok_or_else(|| unknown("protection", code))
}

fn read_handlers(reader: &mut Reader<'_>) -> Result<Vec<String>, CodecError> {
    let count = usize::from(reader.u16("number of handlers")?);
    if count > HANDLERS_MAX {
        return Err(CodecError::Limit {
            what: "number of handlers",
            got: count as u64,
            limit: HANDLERS_MAX as u64,
        });
    }
    (0..count)
        .map(|_| Ok(reader.text("handler name", NAME_BYTES_MAX)?.to_owned()))
        .collect()
}

fn put_early(out: &mut Vec<u8>, early: &[String]) -> Result<(), CodecError> {
    check_early(early.len())?;
    out.push(early.len() as u8);
    for handler in early {
        put_text(out, "handler name", handler, NAME_BYTES_MAX)?;
    }
    Ok(())
}

fn read_early(reader: &mut Reader<'_>) -> Result<Vec<String>, CodecError> {
    let count = usize::from(reader.u8("number of early handlers")?);
    check_early(count)?;
    (0..count)
        .map(|_| Ok(reader.text("handler name", NAME_BYTES_MAX)?.to_owned()))
        .collect()
}

fn check_early(count: usize) -> Result<(), CodecError> {
    if count <= EARLY_HANDLERS_MAX {
        return Ok(());
    }
    Err(CodecError::Limit {
        what: "number of early handlers",
        got: count as u64,
        limit: EARLY_HANDLERS_MAX as u64,
    })
}

fn read_right(reader: &mut Reader<'_>) -> Result<Vec<u8>, CodecError> {
    let length = usize::from(reader.u16("length of a right")?);
    if length > RIGHT_BYTES_MAX {
        return Err(over("right", length as u64, RIGHT_BYTES_MAX as u64));
    }
    Ok(reader.take("right", length)?.to_vec())
}

fn put_refusal(out: &mut Vec<u8>, reason: &LinkRefusal) -> Result<(), CodecError> {
    let (code, text) = match reason {
        LinkRefusal::UnknownEndpoint => (1, ""),
        LinkRefusal::NotAllowed(text) => (2, text.raw_for_comparison()),
        LinkRefusal::Ended(text) => (3, text.raw_for_comparison()),
    };
    out.push(code);
    let text = fitting_text(text, REASON_BYTES_MAX);
    put_text(out, "reason", &text, REASON_BYTES_MAX)
}

fn read_refusal(reader: &mut Reader<'_>) -> Result<LinkRefusal, CodecError> {
    let code = reader.u8("reason")?;
    let text = reader.text("reason", REASON_BYTES_MAX)?;
    match (code, text) {
        (1, "") => Ok(LinkRefusal::UnknownEndpoint),
        (2, text) => Ok(LinkRefusal::NotAllowed(text.into())),
        (3, text) => Ok(LinkRefusal::Ended(text.into())),
        _ => Err(unknown("reason of a refusal", code)),
    }
}

fn read_reason(reader: &mut Reader<'_>) -> Result<CloseReason, CodecError> {
    let code = reader.u8("reason")?;
    let text = reader.text("reason", REASON_BYTES_MAX)?;
    match (code, text) {
        (0, "") => Ok(CloseReason::Finished),
        (1, "") => Ok(CloseReason::ShuttingDown),
        (2, "") => Ok(CloseReason::Expired),
        (3, text) => Ok(CloseReason::NotAllowed(text.into())),
        (4, text) => Ok(CloseReason::Fault(text.into())),
        (5, "") => Ok(CloseReason::Silence),
        _ => Err(unknown("reason of a close", code)),
    }
}

fn unknown(what: &'static str, got: u8) -> CodecError {
    CodecError::Unknown {
        what,
        got: got.into(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::record::CONTROL_BYTES_MAX;

    fn protections() -> impl Strategy<Value = Protection> {
        proptest::sample::select(&Protection::ALL[..])
    }

    fn refusals() -> impl Strategy<Value = LinkRefusal> {
        prop_oneof![
            Just(LinkRefusal::UnknownEndpoint),
            "[a-zü]{0,300}".prop_map(|text| LinkRefusal::NotAllowed(text.into())),
            "[a-zü]{0,300}".prop_map(|text| LinkRefusal::Ended(text.into())),
        ]
    }

    fn lives() -> impl Strategy<Value = LinkLife> {
        prop_oneof![
            Just(LinkLife::OneSession),
            any::<u64>().prop_map(|name| LinkLife::Lasting { name }),
            any::<(u64, u64, u64, [u8; 32])>().prop_map(|(name, attempt, received, proof)| {
                LinkLife::Resumed {
                    name,
                    attempt,
                    received,
                    proof,
                }
            }),
        ]
    }

    fn messages() -> impl Strategy<Value = ControlMessage> {
        let links = || (1_u32..).prop_map(LinkId);
        let class = proptest::sample::select(&TrafficClass::ALL[..]);
        prop_oneof![
            (
                (links(), any::<u32>(), class, protections()),
                "[ -~]{0,100}",
                vec(any::<u8>(), 0..300),
                lives(),
                vec("[a-z]{0,100}", 0..=EARLY_HANDLERS_MAX)
            )
                .prop_map(
                    |((link, job, class, protection), endpoint, right, life, early)| {
                        ControlMessage::LinkOpen {
                            link,
                            job,
                            class,
                            protection,
                            endpoint,
                            right,
                            life,
                            early,
                        }
                    }
                ),
            (
                links(),
                protections(),
                vec("[a-z]{0,100}", 0..=HANDLERS_MAX),
                proptest::option::of((any::<u64>(), 0..=Limits::BYTES_CEILING))
            )
                .prop_map(|(link, protection, handlers, resumption)| {
                    ControlMessage::LinkAccept {
                        link,
                        protection,
                        handlers,
                        resumption: resumption
                            .map(|(received, withheld)| Resumption { received, withheld }),
                    }
                }),
            (links(), refusals())
                .prop_map(|(link, reason)| ControlMessage::LinkRefuse { link, reason }),
            (links(), refusals())
                .prop_map(|(link, reason)| ControlMessage::LinkEnd { link, reason }),
            (links(), protections())
                .prop_map(|(link, protection)| ControlMessage::LinkProtection { link, protection }),
            links().prop_map(|link| ControlMessage::LinkClose { link }),
            links().prop_map(|link| ControlMessage::LinkClosed { link }),
            (links(), 0..=Limits::BYTES_CEILING)
                .prop_map(|(link, bytes)| ControlMessage::Credit { link, bytes }),
            any::<(u64, u64)>()
                .prop_map(|(sealed, opened)| ControlMessage::Heartbeat { sealed, opened }),
            Just(ControlMessage::KeyUpdate),
            (protections(), protections(), protections()).prop_map(|(control, code, data)| {
                ControlMessage::Protections(Protections {
                    control,
                    code,
                    data,
                })
            }),
            "[a-zü]{0,300}".prop_map(|text| ControlMessage::Close(CloseReason::Fault(text.into()))),
            Just(ControlMessage::Close(CloseReason::Finished)),
            Just(ControlMessage::Close(CloseReason::Silence)),
        ]
    }

    proptest! {
        #[test]
        fn every_message_reads_back(message in messages()) {
            let mut bytes = Vec::new();
            message.encode(&mut bytes).unwrap();
            prop_assert!(bytes.len() <= CONTROL_BYTES_MAX);
            prop_assert_eq!(ControlMessage::read(&bytes), Ok(message));
            bytes.push(0);
            prop_assert!(ControlMessage::read(&bytes).is_err());
        }

        /// What reads at all has one spelling.
        #[test]
        fn no_bytes_make_it_panic(code in 0_u8..14, rest in vec(0_u8..5, 0..40)) {
            let mut bytes = vec![code];
            bytes.extend(rest);
            if let Ok(message) = ControlMessage::read(&bytes) {
                let mut again = Vec::new();
                message.encode(&mut again).unwrap();
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
