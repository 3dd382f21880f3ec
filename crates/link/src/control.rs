//! The messages of link 0: what two sessions say to each other about links, credit, keys and the end.

use crate::codec::{Reader, fitting_text, put_text};
use crate::error::{CloseReason, CodecError, LinkRefusal};
use crate::limits::Limits;
use crate::message::LinkId;
use crate::protection::{Protection, Protections, TrafficClass};

/// The longest name of an endpoint or handler.
pub(crate) const NAME_BYTES_MAX: usize = 100;
/// The most handlers of an endpoint: their names must fit in one Control record.
pub(crate) const HANDLERS_MAX: usize = 128;
/// The longest text of a reason.
pub(crate) const REASON_BYTES_MAX: usize = 1000;

/// One message of link 0; a Control record holds exactly one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlMessage {
    /// A startpoint of the sender wants to reach an endpoint of the receiver. States the protection, so that a
    /// disagreement of the two tables is found before data flows.
    LinkOpen {
        link: LinkId,
        job: u32,
        class: TrafficClass,
        protection: Protection,
        endpoint: String,
    },
    LinkAccept {
        link: LinkId,
        handlers: Vec<String>,
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
            } => {
                put_link(out, 1, *link);
                out.extend_from_slice(&job.to_be_bytes());
                out.extend_from_slice(&[class.code(), protection.code()]);
                put_text(out, "endpoint name", endpoint, NAME_BYTES_MAX)?;
            }
            Self::LinkAccept { link, handlers } => {
                put_link(out, 2, *link);
                out.extend_from_slice(&(handlers.len() as u16).to_be_bytes());
                for handler in handlers {
                    put_text(out, "handler name", handler, NAME_BYTES_MAX)?;
                }
            }
            Self::LinkRefuse { link, reason } => {
                put_link(out, 3, *link);
                out.push(match reason {
                    LinkRefusal::UnknownEndpoint => 1,
                });
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
            Self::Close(reason) => {
                out.push(10);
                let (code, text) = match reason {
                    CloseReason::Finished => (0, ""),
                    CloseReason::ShuttingDown => (1, ""),
                    CloseReason::Expired => (2, ""),
                    CloseReason::NotAllowed(text) => (3, text.raw_for_comparison()),
                    CloseReason::Fault(text) => (4, text.raw_for_comparison()),
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
            },
            2 => Self::LinkAccept {
                link: read_link(&mut reader)?,
                handlers: read_handlers(&mut reader)?,
            },
            3 => Self::LinkRefuse {
                link: read_link(&mut reader)?,
                reason: match reader.u8("reason")? {
                    1 => LinkRefusal::UnknownEndpoint,
                    other => return Err(unknown("reason of a refusal", other)),
                },
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

fn read_reason(reader: &mut Reader<'_>) -> Result<CloseReason, CodecError> {
    let code = reader.u8("reason")?;
    let text = reader.text("reason", REASON_BYTES_MAX)?;
    match (code, text) {
        (0, "") => Ok(CloseReason::Finished),
        (1, "") => Ok(CloseReason::ShuttingDown),
        (2, "") => Ok(CloseReason::Expired),
        (3, text) => Ok(CloseReason::NotAllowed(text.into())),
        (4, text) => Ok(CloseReason::Fault(text.into())),
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

    fn messages() -> impl Strategy<Value = ControlMessage> {
        let links = || (1_u32..).prop_map(LinkId);
        let class = proptest::sample::select(&TrafficClass::ALL[..]);
        prop_oneof![
            (links(), any::<u32>(), class, protections(), "[ -~]{0,100}").prop_map(
                |(link, job, class, protection, endpoint)| ControlMessage::LinkOpen {
                    link,
                    job,
                    class,
                    protection,
                    endpoint
                }
            ),
            (links(), vec("[a-z]{0,100}", 0..=HANDLERS_MAX))
                .prop_map(|(link, handlers)| ControlMessage::LinkAccept { link, handlers }),
            links().prop_map(|link| ControlMessage::LinkRefuse {
                link,
                reason: LinkRefusal::UnknownEndpoint
            }),
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
        fn no_bytes_make_it_panic(code in 0_u8..12, rest in vec(0_u8..5, 0..40)) {
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
