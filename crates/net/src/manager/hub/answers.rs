//! What slots say, carried to the router and the user.

use exoskel_identity::Colours;
use exoskel_link::{Event, MessageKind};

use super::Hub;
use crate::manager::{Notice, Output};
use crate::message::ToManager;

/// What is kept of one message of output. A slot sends it in pieces of so many bytes.
const OUTPUT_BYTES_MAX: usize = 256 * 1024;

impl Hub {
    pub(super) fn event(&mut self, number: u32, event: Event) {
        let Event::Message {
            link,
            handler,
            kind,
            head,
            bulk,
            size,
        } = event
        else {
            return;
        };
        let Some(slot) = self.slots.get(&number) else {
            return;
        };
        slot.connection.consumed(link, size);
        let bytes = head.len() + bulk.iter().map(Vec::len).sum::<usize>();
        if !bulk.is_empty() {
            // The connection that just gave buffers away is the one that needs some.
            for spent in self.shared.take_spent() {
                slot.connection.recycle(spent);
            }
        }
        self.tell_watch(number, false, bytes as u64);
        if kind == MessageKind::Post {
            match ToManager::decode(handler, head) {
                Ok(message) => self.message(number, message, bulk),
                Err(error) => self.dismiss(number, error.to_string()),
            }
        } else {
            // Nothing here answers: whoever asks would wait for ever.
            self.dismiss(number, format!("got {kind:?}, expected a post"));
        }
        if self
            .slots
            .get(&number)
            .is_some_and(|slot| !slot.origin.is_trusted())
        {
            // It may send less than before.
            self.dirty.push(number);
        }
        self.pump();
    }

    fn message(&mut self, number: u32, message: ToManager, bulk: Vec<Vec<u8>>) {
        let now = self.now();
        let bytes_max = self.config.terms.limits.message_bytes_max;
        match message {
            message if !bulk.is_empty() && !message.takes_bulk() => {
                let text = format!(
                    "got {} bulk parts beside no results, expected none",
                    bulk.len()
                );
                self.dismiss(number, text);
            }
            // It can never be sent: the item would wait for ever.
            ToManager::Announced { index, bytes, .. } if bytes > bytes_max => {
                let text = format!(
                    "got item {index} announced with {bytes} bytes, expected at most {bytes_max} (message_bytes_max)"
                );
                self.dismiss(number, text);
            }
            ToManager::Output { stream, text } => {
                let Some(slot) = self.slots.get(&number) else {
                    return;
                };
                let colours = if !slot.origin.is_trusted() {
                    Colours::Escaped
                } else {
                    Colours::Kept
                };
                self.shared.notice(Notice::Output(Output {
                    worker: slot.origin.worker.clone(),
                    stream,
                    text: readable(&text).into(),
                    colours,
                }));
                self.wake_users();
            }
            ToManager::Ready { lacks } => self.ready(number, &lacks),
            answer => {
                if let Err(error) = self.router.answer(number, answer, bulk, now) {
                    self.dismiss(number, error.to_string());
                }
            }
        }
    }
}

/// What a worker printed, as text, with a note in the place of what is too much.
fn readable(output: &[u8]) -> String {
    let (kept, rest) = output.split_at(output.len().min(OUTPUT_BYTES_MAX));
    let mut text = String::from_utf8_lossy(kept).into_owned();
    if !rest.is_empty() {
        let note = format!("\n[output cut: {} bytes dropped]\n", rest.len());
        text.push_str(&note);
    }
    text
}
