//! Orders of slots, for replacement policies.

/// Slots of a cache in rings, each ring in an order of its own: doubly linked, through numbers instead of pointers, each with a head of its own
/// so that no end is a special case.
pub struct Rings {
    slots: u32,
    links: Vec<Neighbours>,
}

/// A slot's neighbours.
#[derive(Clone, Copy)]
struct Neighbours {
    newer: u32,
    older: u32,
}

impl Rings {
    /// So many slots, none in a ring yet, and so many empty rings.
    pub fn new(slots: usize, rings: usize) -> Self {
        Self {
            slots: slots as u32,
            // Everything is a ring by itself at first.
            links: (0..(slots + rings) as u32)
                .map(|own| Neighbours {
                    newer: own,
                    older: own,
                })
                .collect(),
        }
    }

    /// What [`Self::oldest`] gives for a ring that is empty.
    pub fn head(&self, ring: u32) -> u32 {
        self.slots + ring
    }

    /// The oldest slot of a ring.
    pub fn oldest(&self, ring: u32) -> u32 {
        self.links[self.head(ring) as usize].newer
    }

    /// Puts a slot that is in no ring at the newest end of this one.
    pub fn push_newest(&mut self, ring: u32, slot: u32) {
        let head = self.head(ring);
        let former = self.links[head as usize].older;
        self.links[slot as usize] = Neighbours {
            newer: head,
            older: former,
        };
        self.links[former as usize].newer = slot;
        self.links[head as usize].older = slot;
    }

    /// Takes a slot out of its ring.
    pub fn unlink(&mut self, slot: u32) {
        let Neighbours { newer, older } = self.links[slot as usize];
        self.links[newer as usize].older = older;
        self.links[older as usize].newer = newer;
    }

    /// Whether the slot is the newest of this ring.
    pub fn is_newest(&self, ring: u32, slot: u32) -> bool {
        self.links[self.head(ring) as usize].older == slot
    }
}
