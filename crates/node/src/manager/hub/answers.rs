//! What slots say, carried to the scheduler and the outlets.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use exoskel_flow::{FrameId, Sizes, SlotId};
use exoskel_link::Event;

use super::Hub;
use crate::manager::Notice;
use crate::message::ToManager;
use crate::outlet::{Contents, Outcomes};
use crate::payload::{Batch, RecordReader, check_records};

impl Hub {
    pub(super) fn event(&mut self, number: u32, event: Event) {
        let Event::Message {
            link,
            handler,
            head,
            bulk,
            size,
            ..
        } = event
        else {
            return;
        };
        let Some(slot) = self.slots.get(&number) else {
            return;
        };
        slot.connection.consumed(link, size);
        if !bulk.is_empty() {
            // The connection that just gave buffers away is the one that needs some.
            for spent in self.shared.take_spent() {
                slot.connection.recycle(spent);
            }
        }
        match ToManager::decode(handler, head) {
            Ok(message) => self.message(number, message, bulk),
            Err(error) => self.dismiss(number, error.to_string()),
        }
        self.pump();
    }

    pub(super) fn message(&mut self, number: u32, message: ToManager, bulk: Vec<Vec<u8>>) {
        let now = self.now();
        let slot = SlotId(number);
        match message {
            ToManager::Results {
                frame,
                first,
                count,
                busy,
                records,
            } => {
                let busy = Duration::from_nanos(busy);
                self.results(number, FrameId(frame), first, count, busy, records, bulk);
            }
            ToManager::Released { frame, busy } => {
                let busy = Duration::from_nanos(busy);
                self.scheduler.released(slot, FrameId(frame), busy, now);
            }
            ToManager::Recalled {
                frame,
                first,
                count,
            } => {
                self.scheduler
                    .recalled(slot, FrameId(frame), first, count, now);
            }
            ToManager::Announced {
                frame,
                index,
                bytes,
                ..
            } => {
                self.scheduler
                    .announced(slot, FrameId(frame), index, bytes, now);
            }
            ToManager::Output { stream, text } => {
                let Some(slot) = self.slots.get(&number) else {
                    return;
                };
                let text = String::from_utf8_lossy(&text).into_owned();
                self.shared
                    .notice(Notice::Output(slot.origin.worker.clone(), stream, text));
                self.wake_users();
            }
            ToManager::Ready { lacks } => self.ready(number, &lacks),
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    pub(super) fn results(
        &mut self,
        number: u32,
        frame: FrameId,
        first: u64,
        count: u32,
        busy: Duration,
        records: Bytes,
        bulk: Vec<Vec<u8>>,
    ) {
        let now = self.now();
        // What the scheduler has counted is done. So what can't be read must not reach it: the items stay with the
        // slot, and go to another one when this one is dismissed.
        if let Err(error) = check_records(&records, bulk.len(), count) {
            return self.dismiss(number, error.to_string());
        }
        let bytes = records.len() as u64 + bulk.iter().map(|part| part.len() as u64).sum::<u64>();
        let sizes = Sizes::Total { count, bytes };
        let Some(accepted) = self
            .scheduler
            .results(SlotId(number), frame, first, sizes, busy, now)
        else {
            return;
        };
        let (segment, last) = (usize::from(accepted.segment), accepted.last);
        let ranges: Vec<Range<u64>> = accepted.ranges.to_vec();
        let whole = ranges.len() == 1 && ranges[0] == (first..first + u64::from(count));
        let Some(stream) = self
            .numbers
            .get(&accepted.stream)
            .and_then(|number| self.streams.get_mut(number))
        else {
            return;
        };
        let Some(origin) = self.slots.get(&number).map(|slot| slot.origin.clone()) else {
            return;
        };
        for range in &ranges {
            stream.tokens[segment].release(range);
        }
        if whole && last {
            let contents = Contents::Records(RecordReader::new(records, bulk), origin);
            stream.outlet.deliver(Outcomes {
                first,
                count,
                contents,
            });
            return;
        }
        let bulk = bulk.into_iter().map(Bytes::from).collect();
        let batch = match Batch::parse(records, bulk, count, origin.restricted) {
            Ok(batch) => batch,
            Err(error) => {
                // Can't be: it was checked above.
                return self.dismiss(number, error.to_string());
            }
        };
        for range in ranges {
            let part = batch.part(range.start - first, range.end - range.start);
            if last {
                let count = part.count();
                let contents = Contents::Records(part.into_reader(), origin.clone());
                stream.outlet.deliver(Outcomes {
                    first: range.start,
                    count,
                    contents,
                });
            } else if let Some(tokens) = stream.tokens.get_mut(segment + 1) {
                tokens.insert(range.start, part);
            }
        }
    }
}
