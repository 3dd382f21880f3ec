//! Where a value stands, and what a container still holds.

/// What a value is asked to be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Permitted {
    Anywhere,
    /// A key of a map, a member of a set, or within such a one.
    Key,
    /// What a registered instance is made of that is such a key: anything, but it will be compared.
    OfKey,
    /// What a library's object is directly made of: each array and list here costs that library some time.
    OfLibrary,
    /// A count of a counter: a number. Python compares counters within counters in time that doubles with each level.
    Count,
}

impl Permitted {
    /// The place of what a container in this place holds, if that container can't be a key.
    pub(super) const fn contents(self) -> Self {
        match self {
            Self::OfKey => Self::OfKey,
            Self::Anywhere | Self::Key | Self::OfLibrary | Self::Count => Self::Anywhere,
        }
    }
}

/// What a container holds, as far as it hasn't come.
#[derive(Clone, Copy)]
pub(super) struct Follows {
    /// Values; keys count as well.
    pub(super) count: u64,
    /// Where the next one stands.
    pub(super) place: Permitted,
    /// Where the one after it stands: keys and values of a map take turns.
    pub(super) other: Permitted,
}

impl Follows {
    pub(super) const NOTHING: Self = Self::values(0, Permitted::Anywhere);

    pub(super) const fn values(count: u64, place: Permitted) -> Self {
        Self {
            count,
            place,
            other: place,
        }
    }

    pub(super) const fn pairs(count: u64, of_values: Permitted) -> Self {
        Self {
            // More than there are bytes, if this isn't exact.
            count: count.saturating_mul(2),
            place: Permitted::Key,
            other: of_values,
        }
    }

    /// Whether short texts and numbers may stand at each place, keys included.
    pub(super) fn takes_anything(&self) -> bool {
        self.place != Permitted::Count && self.other != Permitted::Count
    }

    /// So many values are passed, of those that there are.
    pub(super) fn pass(&mut self, count: u64) {
        self.count -= count;
        if count % 2 == 1 {
            std::mem::swap(&mut self.place, &mut self.other);
        }
    }

    /// Where the next value stands, of those that there are.
    #[inline]
    pub(super) fn next(&mut self) -> Permitted {
        self.count -= 1;
        std::mem::swap(&mut self.place, &mut self.other);
        self.other
    }
}
