//! What one end of a link keeps, so that the link can go over to another session.
//!
//! Messages are kept by reference from when they are sent until credit for them comes back: what the peer has consumed, it has received.
//! Each end counts the messages that it has received. When a link is resumed both say how many, and each sends what the other one
//! lacks: once, and in order.

use std::collections::VecDeque;

use exoskel_link::{Message, MessageKind, ResumptionKey};

use super::MARK;
use super::binding::is_told;

/// One end of a link that outlives its sessions.
pub(super) struct LastingEnd {
    /// What its opener calls it.
    pub(super) name: u64,
    /// Of the session in which it was opened.
    pub(super) key: ResumptionKey,
    /// How many times it has been asked for in another session.
    pub(super) attempt: u64,
    /// How many messages of the peer have come.
    pub(super) received: u64,
    /// How many messages of ours the peer is known to have received.
    acknowledged: u64,
    /// The later ones.
    kept: VecDeque<Message>,
    kept_bytes: u64,
    /// How much of this session's credit stands for messages that are not kept any more.
    used: u64,
}

/// A count of received messages that can't be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ImpossibleCount {
    pub(super) got: u64,
    pub(super) least: u64,
    pub(super) most: u64,
}

impl LastingEnd {
    pub(super) fn new(name: u64, key: ResumptionKey) -> Self {
        Self {
            name,
            key,
            attempt: 0,
            received: 0,
            acknowledged: 0,
            kept: VecDeque::new(),
            kept_bytes: 0,
            used: 0,
        }
    }

    pub(super) fn keep(&mut self, message: Message) {
        self.kept_bytes += message.size();
        self.kept.push_back(message);
    }

    /// The newest message was not sent, and won't be.
    pub(super) fn take_back(&mut self) {
        if let Some(message) = self.kept.pop_back() {
            self.kept_bytes -= message.size();
        }
    }

    /// So much credit has come back in this session. What it stands for has arrived.
    pub(super) fn credited(&mut self, total: u64) {
        while let Some(size) = self.kept.front().map(Message::size) {
            if self.used.saturating_add(size) > total {
                break;
            }
            self.used += size;
            self.drop_first();
        }
    }

    /// The answer to a request of ours has come. What was sent before it has been handled, as calls of a link are one after the other; what
    /// streams and regions ask is dealt with at once, and shows nothing.
    pub(super) fn answered(&mut self, request: u64) {
        let is_asked = |message: &Message| message.kind == MessageKind::Request(request);
        let Some(place) = self.kept.iter().position(is_asked) else {
            return;
        };
        if self.kept[place].head.first() == Some(&MARK) {
            return;
        }
        for message in self.kept.iter().take(place + 1) {
            self.used = self.used.saturating_add(message.size());
        }
        for _ in 0..=place {
            self.drop_first();
        }
    }

    /// The peer has received so many messages, and it withholds so much credit for those that it has not consumed.
    pub(super) fn resume(&mut self, received: u64, withheld: u64) -> Result<(), ImpossibleCount> {
        let most = self.acknowledged + self.kept.len() as u64;
        if !(self.acknowledged..=most).contains(&received) {
            return Err(ImpossibleCount {
                got: received,
                least: self.acknowledged,
                most,
            });
        }
        while self.acknowledged < received {
            self.drop_first();
        }
        self.used = withheld;
        Ok(())
    }

    fn drop_first(&mut self) {
        if let Some(message) = self.kept.pop_front() {
            self.kept_bytes -= message.size();
            self.acknowledged += 1;
        }
    }

    /// Whether the peer was thought to lack some of what it has received.
    pub(super) fn lacked(&self, received: u64) -> bool {
        received > self.acknowledged
    }

    /// What the peer may lack, in order.
    pub(super) fn kept(&self) -> impl Iterator<Item = &Message> {
        self.kept.iter()
    }

    pub(super) fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Posts of which nobody knows whether they have arrived.
    pub(super) fn unknown_posts(&self) -> usize {
        let is_told_post =
            |message: &&Message| message.kind == MessageKind::Post && is_told(&message.head);
        self.kept.iter().filter(is_told_post).count()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use exoskel_link::keys::KeyStore;
    use exoskel_link::{Session, SessionConfig, SessionSecret, Side};
    use proptest::prelude::*;

    use super::*;

    fn end() -> LastingEnd {
        let session = Session::new(
            SessionConfig::new(Side::Client),
            SessionSecret::from_bytes(&[1; 32]),
            &KeyStore::in_ordinary_memory(1),
            Duration::ZERO,
        );
        LastingEnd::new(1, session.resumption_key().clone())
    }

    fn message(number: u64, bytes: usize) -> Message {
        Message {
            handler: 0,
            kind: MessageKind::Post,
            head: Bytes::from(number.to_be_bytes().to_vec()),
            bulk: vec![Bytes::from(vec![0; bytes])],
            is_gathered: false,
        }
    }

    #[test]
    fn nobody_has_received_what_was_not_sent_nor_less_than_he_said() {
        let mut end = end();
        end.keep(message(0, 10));
        end.keep(message(1, 10));
        end.credited(message(0, 10).size());
        for got in [0, 3, u64::MAX] {
            let impossible = ImpossibleCount {
                got,
                least: 1,
                most: 2,
            };
            assert_eq!(end.resume(got, 0), Err(impossible));
        }
        assert_eq!(end.unknown_posts(), 1);
        assert_eq!(end.resume(2, 0), Ok(()));
        assert_eq!((end.unknown_posts(), end.kept_bytes()), (0, 0));
    }

    proptest! {
        /// Whatever is sent, lost, consumed and resumed: the receiver gets each message once and in order.
        #[test]
        fn each_message_arrives_once_and_in_order(
            steps in prop::collection::vec((0_u8..4, 0_usize..300, any::<prop::sample::Index>()), 1..60)
        ) {
            let mut sender = end();
            let (mut made, mut got) = (0, Vec::new());
            // On the wire of this session, and what the receiver holds and has not consumed.
            let (mut wire, mut held) = (VecDeque::new(), VecDeque::new());
            let mut credit = 0;
            for (step, bytes, index) in steps {
                match step {
                    0 => {
                        sender.keep(message(made, bytes));
                        wire.push_back(message(made, bytes));
                        made += 1;
                    }
                    1 => {
                        if let Some(message) = wire.pop_front() {
                            got.push(u64::from_be_bytes(message.head[..].try_into().unwrap()));
                            held.push_back(message.size());
                        }
                    }
                    2 => {
                        for size in held.drain(..index.index(held.len() + 1)) {
                            credit += size;
                        }
                        sender.credited(credit);
                    }
                    _ => {
                        let withheld: u64 = held.iter().sum();
                        credit = 0;
                        sender.resume(got.len() as u64, withheld).unwrap();
                        wire = sender.kept().cloned().collect();
                    }
                }
                let on_the_way: u64 = wire.iter().map(Message::size).sum();
                prop_assert!(sender.kept_bytes() >= on_the_way);
            }
            sender.resume(got.len() as u64, 0).unwrap();
            for message in sender.kept() {
                got.push(u64::from_be_bytes(message.head[..].try_into().unwrap()));
            }
            prop_assert_eq!(got, (0..made).collect::<Vec<_>>());
        }
    }
}
