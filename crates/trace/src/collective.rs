//! Which messages a collective operation is made of.

use crate::Operation;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageDirection {
    /// Away from this rank.
    Send,
    /// To this rank.
    Receive,
}

/// A message of a collective, as one member sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollectiveStep {
    /// Which way it goes.
    pub direction: MessageDirection,
    /// The rank at its other end.
    pub peer: u16,
    /// Its payload.
    pub bytes: u32,
}

/// See [`Trace::steps`](crate::Trace::steps). Nothing for who isn't a member, or when the root isn't.
pub(crate) fn steps(
    operation: Operation,
    me: u16,
    members: &[u16],
    root: Option<u16>,
    bytes: u32,
) -> Vec<CollectiveStep> {
    let place = |rank| members.iter().position(|member| *member == rank);
    let Some(mine) = place(me) else {
        return Vec::new();
    };
    let ring = Ring { members, mine };
    let rooted = root.and_then(place);
    match operation {
        Operation::Barrier => ring.dissemination(),
        Operation::Broadcast => {
            rooted.map_or_else(Vec::new, |root| ring.downwards(root, |_| bytes))
        }
        Operation::Reduce => rooted.map_or_else(Vec::new, |root| ring.upwards(root, |_| bytes)),
        Operation::Scatter => rooted.map_or_else(Vec::new, |root| {
            ring.downwards(root, |subtree| bytes.saturating_mul(subtree))
        }),
        Operation::Gather => rooted.map_or_else(Vec::new, |root| {
            ring.upwards(root, |subtree| bytes.saturating_mul(subtree))
        }),
        Operation::AllReduce if members.len().is_power_of_two() => ring.doubling(bytes),
        Operation::AllReduce => {
            let mut all = ring.upwards(0, |_| bytes);
            all.extend(ring.downwards(0, |_| bytes));
            all
        }
        Operation::AllToAll | Operation::AllToAllVarying | Operation::ReduceScatter => {
            ring.pairwise(bytes)
        }
        Operation::AllGather => ring.around(bytes),
        Operation::Scan => ring.along(bytes),
        _ => Vec::new(),
    }
}

/// The members in a circle, and the place of one of them.
struct Ring<'a> {
    members: &'a [u16],
    mine: usize,
}

impl Ring<'_> {
    fn size(&self) -> usize {
        self.members.len()
    }

    /// The member so many places after `place`.
    fn after(&self, place: usize, distance: usize) -> u16 {
        self.members[(place + distance) % self.size()]
    }

    fn before(&self, place: usize, distance: usize) -> u16 {
        self.after(place, self.size() - distance % self.size())
    }

    fn send(&self, distance: usize, bytes: u32) -> CollectiveStep {
        CollectiveStep {
            direction: MessageDirection::Send,
            peer: self.after(self.mine, distance),
            bytes,
        }
    }

    fn receive(&self, distance: usize, bytes: u32) -> CollectiveStep {
        CollectiveStep {
            direction: MessageDirection::Receive,
            peer: self.before(self.mine, distance),
            bytes,
        }
    }

    /// 1, 2, 4, .. below the number of members.
    fn powers(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let size = self.size();
        let count = usize::BITS - size.saturating_sub(1).leading_zeros();
        (0..count).map(|exponent| 1 << exponent)
    }

    fn dissemination(&self) -> Vec<CollectiveStep> {
        let exchange = |distance| [self.send(distance, 0), self.receive(distance, 0)];
        self.powers().flat_map(exchange).collect()
    }

    /// With the member whose place differs in one bit; only among a power of two.
    fn doubling(&self, bytes: u32) -> Vec<CollectiveStep> {
        let exchange = |bit: usize| {
            let peer = self.members[self.mine ^ bit];
            [MessageDirection::Send, MessageDirection::Receive].map(|direction| CollectiveStep {
                direction,
                peer,
                bytes,
            })
        };
        self.powers().flat_map(exchange).collect()
    }

    fn pairwise(&self, bytes: u32) -> Vec<CollectiveStep> {
        (1..self.size())
            .flat_map(|distance| [self.send(distance, bytes), self.receive(distance, bytes)])
            .collect()
    }

    fn around(&self, bytes: u32) -> Vec<CollectiveStep> {
        (1..self.size())
            .flat_map(|_| [self.send(1, bytes), self.receive(1, bytes)])
            .collect()
    }

    fn along(&self, bytes: u32) -> Vec<CollectiveStep> {
        let from = (self.mine > 0).then(|| self.receive(1, bytes));
        let to = (self.mine + 1 < self.size()).then(|| self.send(1, bytes));
        from.into_iter().chain(to).collect()
    }

    /// Down a binomial tree: from the parent, then to the children, the one with the largest subtree first. `bytes` of the size of a subtree.
    fn downwards(&self, root: usize, bytes: impl Fn(u32) -> u32) -> Vec<CollectiveStep> {
        let family = self.family(root);
        let step = |direction, branch: Branch| CollectiveStep {
            direction,
            peer: branch.peer,
            bytes: bytes(branch.size),
        };
        let from = family
            .parent
            .map(|parent| step(MessageDirection::Receive, parent));
        let to = family.children.into_iter().rev();
        from.into_iter()
            .chain(to.map(|child| step(MessageDirection::Send, child)))
            .collect()
    }

    /// The other way round.
    fn upwards(&self, root: usize, bytes: impl Fn(u32) -> u32) -> Vec<CollectiveStep> {
        let mut steps = self.downwards(root, bytes);
        steps.reverse();
        for step in &mut steps {
            step.direction = match step.direction {
                MessageDirection::Send => MessageDirection::Receive,
                MessageDirection::Receive => MessageDirection::Send,
            };
        }
        steps
    }

    /// This member's relatives in the binomial tree with that root.
    fn family(&self, root: usize) -> Family {
        let size = self.size();
        let own = (self.mine + size - root) % size;
        // A branch is as wide as the bit that it differs in, but for what the last one lacks.
        let branch = |peer: usize, from: usize, width: usize| Branch {
            peer: self.members[(peer + root) % size],
            size: width.min(size - from) as u32,
        };
        let mut children = Vec::new();
        for bit in self.powers() {
            if own & bit != 0 {
                let parent = Some(branch(own - bit, own, bit));
                return Family { parent, children };
            }
            if own + bit < size {
                children.push(branch(own + bit, own + bit, bit));
            }
        }
        Family {
            parent: None,
            children,
        }
    }
}

/// A member's place in a tree.
struct Family {
    /// Its parent, with the size of the branch that the member is the root of.
    parent: Option<Branch>,
    /// The smallest first.
    children: Vec<Branch>,
}

/// An edge of a tree: who is at its other end, and how many members are below it.
struct Branch {
    peer: u16,
    size: u32,
}
