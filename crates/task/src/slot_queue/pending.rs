//! What is told of items and waits to be sent together.

use std::time::Duration;

use bytes::BytesMut;

use super::{ItemKey, Outgoing};
use crate::message::ToManager;
use crate::payload::{RecordWriter, put_varint};

/// What a record says of its item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    #[default]
    Outcome,
    /// The program wants the item to be run again for it.
    Retriable,
    /// The item was made into others.
    Expanded,
    /// One record is that of all items.
    Folded,
    /// The first record is a state, those of the items follow.
    Carried,
}

#[derive(Debug, Default)]
pub(super) struct Pending {
    pub(super) kind: Kind,
    pub(super) frame: u64,
    /// The segment that the items have reached.
    pub(super) reached: u16,
    pub(super) first: u64,
    pub(super) items: u32,
    pub(super) busy: u64,
    pub(super) since: Option<Duration>,
    /// Of items that were made into others: how many records each has.
    pub(super) lists: BytesMut,
    pub(super) writer: RecordWriter,
}

/// What is told of an item.
#[derive(Clone, Copy)]
pub(super) struct ToldItem {
    pub(super) kind: Kind,
    /// The segment that it has reached.
    pub(super) reached: u16,
    /// The first of its records is no part.
    pub(super) has_state: bool,
}

impl ToldItem {
    /// Of an item that goes on behind the last segment that it passes here.
    pub(super) fn of(key: ItemKey, kind: Kind) -> Self {
        Self {
            kind,
            // A program has far fewer segments than a number could count.
            reached: key.to.saturating_add(1),
            has_state: false,
        }
    }
}

impl Pending {
    pub(super) fn new(kind: Kind, (frame, reached): (u64, u16), first: u64) -> Self {
        Self {
            kind,
            frame,
            reached,
            first,
            ..Self::default()
        }
    }

    /// Takes the records of the next item.
    pub(super) fn push(&mut self, records: &mut RecordWriter, told: ToldItem) {
        if self.kind == Kind::Expanded {
            let count = u64::from(records.count());
            put_varint(&mut self.lists, count << 1 | u64::from(told.has_state));
        }
        self.items += 1;
        self.writer.append(records);
    }

    /// The message, unless there is nothing in it.
    pub(super) fn into_outgoing(mut self) -> Option<Outgoing> {
        let (_, records, bulk) = self.writer.take();
        let count = self.items;
        let (frame, first, busy) = (self.frame, self.first, self.busy);
        let message = match self.kind {
            Kind::Outcome => ToManager::Results {
                frame,
                first,
                reached: self.reached,
                count,
                busy,
                records,
            },
            Kind::Retriable => ToManager::Retriable {
                frame,
                first,
                count,
                busy,
                records,
            },
            Kind::Expanded => {
                let mut lists = self.lists;
                lists.extend_from_slice(&records);
                ToManager::Expanded {
                    frame,
                    first,
                    count,
                    busy,
                    lists: lists.freeze(),
                }
            }
            Kind::Folded => ToManager::Folded {
                frame,
                first,
                count,
                busy,
                record: records,
            },
            Kind::Carried => ToManager::Carried {
                frame,
                first,
                count,
                busy,
                records,
            },
        };
        (count > 0).then(|| Outgoing {
            message: message.with_bulk(bulk),
            can_wait: false,
        })
    }

    /// What waits for a grant is dropped. The manager knows of its first item, and still counts on an answer for the others that were folded into it,
    /// or come with it.
    pub(super) fn give_up(&self) -> Option<Outgoing> {
        let recalled = ToManager::Recalled {
            frame: self.frame,
            first: self.first + 1,
            count: self.items.saturating_sub(1),
        };
        (self.items > 1).then(|| recalled.into())
    }

    /// The item that would follow.
    pub(super) fn next(&self) -> u64 {
        self.first + u64::from(self.items)
    }
}
