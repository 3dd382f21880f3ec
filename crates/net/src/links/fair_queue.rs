//! What waits, in the turns of the peers whose it is: a certificate has one turn, however many links, sessions and processes it has.

use std::collections::VecDeque;
use std::sync::Arc;

use exoskel_node::links::PeerProcess;

/// A queue for each peer; the peers take turns.
pub(super) struct FairQueue<T> {
    /// Peers of whom something waits, each once, in the order of their turns.
    peers: VecDeque<PeerQueue<T>>,
}

struct PeerQueue<T> {
    /// One of its processes.
    peer: Arc<PeerProcess>,
    waiting: VecDeque<T>,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            peers: VecDeque::new(),
        }
    }
}

impl<T> FairQueue<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.peers.iter().map(|one| one.waiting.len()).sum()
    }

    pub(super) fn push(&mut self, peer: &Arc<PeerProcess>, item: T) {
        let mut peers = self.peers.iter_mut();
        if let Some(known) = peers.find(|one| one.peer.node == peer.node) {
            return known.waiting.push_back(item);
        }
        self.peers.push_back(PeerQueue {
            peer: peer.clone(),
            waiting: VecDeque::from([item]),
        });
    }

    /// The first item of the first peer in turn whose first item is free. A peer whose first one isn't keeps its turn.
    pub(super) fn pop(&mut self, is_free: impl Fn(&T) -> bool) -> Option<T> {
        let mut peers = self.peers.iter();
        let place = peers.position(|one| one.waiting.front().is_some_and(&is_free))?;
        let mut peer = self.peers.remove(place)?;
        let item = peer.waiting.pop_front();
        if !peer.waiting.is_empty() {
            self.peers.push_back(peer);
        }
        item
    }

    pub(super) fn retain(&mut self, mut is_kept: impl FnMut(&T) -> bool) {
        self.peers.retain_mut(|peer| {
            peer.waiting.retain(&mut is_kept);
            !peer.waiting.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use exoskel_identity::{Identity, Role};
    use exoskel_link::handshake::{PROCESS_NUMBER_BYTES, ProcessNumber};

    use super::*;

    fn process(name: &str, number: u8) -> Arc<PeerProcess> {
        Arc::new(PeerProcess {
            node: Identity::new(Role::Peer, name).unwrap(),
            process: ProcessNumber::new([number; PROCESS_NUMBER_BYTES]),
        })
    }

    #[test]
    fn peers_take_turns_whatever_their_processes() {
        let mut queue = FairQueue::default();
        for number in 1..=3 {
            queue.push(&process("crowd", number), number);
        }
        queue.push(&process("alone", 1), 10);
        queue.push(&process("alone", 1), 11);
        let order: Vec<u8> = std::iter::from_fn(|| queue.pop(|_| true)).collect();
        assert_eq!(order, [1, 10, 2, 11, 3]);
        assert!(queue.is_empty());
    }

    #[test]
    fn who_is_not_free_keeps_its_turn() {
        let mut queue = FairQueue::default();
        queue.push(&process("held", 1), 1);
        queue.push(&process("other", 1), 10);
        queue.push(&process("other", 1), 11);
        assert_eq!(queue.pop(|&item| item > 5), Some(10));
        assert_eq!(queue.pop(|_| true), Some(1));
        queue.retain(|&item| item != 11);
        assert!(queue.is_empty());
    }
}
