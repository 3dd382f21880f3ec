//! The functions that a slot has: sent once, kept for later streams, forgotten when they would be too many.

use std::collections::{BTreeSet, HashMap};

use super::Function;
use crate::message::Digest;

/// What a slot has been sent and has not been told to forget.
#[derive(Debug, Default)]
pub(super) struct FunctionsAtSlot {
    known: HashMap<Digest, KnownFunction>,
    /// The same by their last use: the oldest is found without a look at all others, of which there may be a hundred thousand.
    by_use: BTreeSet<(u64, Digest)>,
    /// Of all their pickles.
    bytes: u64,
    /// Counts the streams that were defined.
    uses: u64,
}

#[derive(Debug)]
struct KnownFunction {
    bytes: u64,
    last_use: u64,
}

/// What the slot is told before a stream's program.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct FunctionsToSend {
    /// What goes first.
    pub(super) discarded: Vec<Digest>,
    /// What it lacks.
    pub(super) missing: Vec<Digest>,
}

impl FunctionsAtSlot {
    /// A stream needs these functions. When more than `bytes_max` would be there, those go that no stream uses, as `is_in_use` says,
    /// the one that was needed longest ago first.
    pub(super) fn need(
        &mut self,
        functions: &[Function],
        bytes_max: u64,
        is_in_use: impl Fn(&Digest) -> bool,
    ) -> FunctionsToSend {
        let mut to_send = FunctionsToSend::default();
        self.uses += 1;
        for function in functions {
            let bytes = function.pickle.len() as u64;
            let known = self.known.entry(function.digest).or_insert_with(|| {
                self.bytes += bytes;
                to_send.missing.push(function.digest);
                KnownFunction { bytes, last_use: 0 }
            });
            self.by_use.remove(&(known.last_use, function.digest));
            known.last_use = self.uses;
            self.by_use.insert((self.uses, function.digest));
        }
        if self.bytes > bytes_max {
            to_send.discarded = self.discard(bytes_max, is_in_use);
        }
        to_send
    }

    fn discard(&mut self, bytes_max: u64, is_in_use: impl Fn(&Digest) -> bool) -> Vec<Digest> {
        let mut surplus = self.bytes.saturating_sub(bytes_max);
        let mut discarded = Vec::new();
        // Those of this very stream are younger than all others.
        for (_, digest) in self.by_use.range(..(self.uses, [0; 32])) {
            if surplus == 0 {
                break;
            }
            if !is_in_use(digest) {
                let bytes = self.known.get(digest).map_or(0, |known| known.bytes);
                surplus = surplus.saturating_sub(bytes);
                discarded.push(*digest);
            }
        }
        for digest in &discarded {
            if let Some(known) = self.known.remove(digest) {
                self.by_use.remove(&(known.last_use, *digest));
                self.bytes -= known.bytes;
            }
        }
        discarded
    }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    fn function(name: u8, bytes: usize) -> Function {
        Function {
            digest: [name; 32],
            pickle: vec![name; bytes].into(),
        }
    }

    /// Aim: what was needed longest ago goes first, what is in use stays, and what went is sent again.
    #[test]
    fn the_least_recently_used_goes() {
        let mut slot = FunctionsAtSlot::default();
        let [first, second, third, fourth] = [1, 2, 3, 4].map(|name| function(name, 40));
        let mut need = |functions: &[Function], in_use: &[u8]| {
            let sent = slot.need(functions, 100, |digest| in_use.contains(&digest[0]));
            let names = |digests: Vec<Digest>| digests.into_iter().map(|digest| digest[0]);
            let missing: Vec<u8> = names(sent.missing).collect();
            let discarded: Vec<u8> = names(sent.discarded).collect();
            (missing, discarded)
        };
        assert_eq!(need(slice::from_ref(&first), &[]), (vec![1], vec![]));
        assert_eq!(need(slice::from_ref(&second), &[]), (vec![2], vec![]));
        assert_eq!(
            need(slice::from_ref(&first), &[]),
            (vec![], vec![]),
            "it is there"
        );
        assert_eq!(need(slice::from_ref(&third), &[]), (vec![3], vec![2]));
        assert_eq!(need(slice::from_ref(&fourth), &[1]), (vec![4], vec![3]));
        let all = [first, second, third];
        assert_eq!(need(&all, &[1, 4]), (vec![2, 3], vec![]), "all are in use");
        assert_eq!(need(&[fourth], &[]), (vec![], vec![1, 2]));
    }

    /// Aim: among very many functions that the slot has, few are looked at when one more is needed.
    #[test]
    fn few_are_looked_at_to_make_room() {
        let mut slot = FunctionsAtSlot::default();
        let mut looked_at = 0;
        for number in 0..3000_u32 {
            let mut name = function(0, 1);
            name.digest[..4].copy_from_slice(&number.to_be_bytes());
            let looked = std::cell::Cell::new(0);
            slot.need(slice::from_ref(&name), 1000, |_| {
                looked.set(looked.get() + 1);
                false
            });
            looked_at += looked.get();
        }
        assert_eq!((slot.known.len(), slot.by_use.len()), (1000, 1000));
        assert_eq!(looked_at, 2000, "each goes once");
    }
}
