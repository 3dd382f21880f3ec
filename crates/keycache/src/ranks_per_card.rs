//! Which ranks share a node and its card.

use std::num::NonZeroU16;

use exoskel_trace::Trace;

use crate::error::KeycacheError;

/// How many ranks of a program are on one node, behind one card: consecutive ones, the first of them on the first node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RanksPerCard(NonZeroU16);

impl RanksPerCard {
    /// A card for each rank.
    pub const ONE: Self = Self(NonZeroU16::MIN);

    /// So many of this trace's ranks behind each card.
    ///
    /// # Errors
    /// [`KeycacheError`] if that doesn't divide the ranks.
    pub fn of(trace: &Trace, ranks_per_card: u64) -> Result<Self, KeycacheError> {
        Self::dividing(&trace.name, trace.ranks.len(), ranks_per_card)
    }

    pub(crate) fn dividing(
        trace: &str,
        ranks: usize,
        ranks_per_card: u64,
    ) -> Result<Self, KeycacheError> {
        let number = u16::try_from(ranks_per_card).ok().and_then(NonZeroU16::new);
        match number {
            Some(number) if ranks.is_multiple_of(number.get().into()) => Ok(Self(number)),
            _ => Err(KeycacheError::RanksPerCard {
                trace: trace.to_owned(),
                ranks,
                ranks_per_card,
            }),
        }
    }

    /// What parameters say, which were found possible.
    pub(crate) fn stated(ranks_per_card: u32) -> Self {
        let number = u16::try_from(ranks_per_card).unwrap_or(u16::MAX);
        Self(NonZeroU16::new(number).unwrap_or(NonZeroU16::MIN))
    }

    /// How many.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0.get()
    }

    /// Which card a rank has.
    #[must_use]
    pub fn card(self, rank: u16) -> u16 {
        rank / self.0
    }

    /// Which one of its card's ranks it is.
    #[must_use]
    pub fn place(self, rank: u16) -> u16 {
        rank % self.0
    }

    /// Whether a message between two ranks stays on their node: it needs no card and no key.
    #[must_use]
    pub fn shared(self, rank: u16, other: u16) -> bool {
        self.card(rank) == self.card(other)
    }
}
