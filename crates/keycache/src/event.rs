//! What can happen in a run.

/// One of the things that the agenda holds. Nodes and inputs, packets and messages are numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A card begins to send the packet at the head of its queue.
    Transmit(u16),
    /// A packet reaches the switch.
    AtSwitch(u32),
    /// The first packet of an input asks for its output (crossbar).
    Request(u16),
    /// An output is given to the first that asked (crossbar).
    Arbitrate(u16),
    /// A packet reaches the receiving card.
    AtCard(u32),
    /// The first bit of a message reaches its destination (message level).
    Arriving(u32),
    /// A flow ends, unless its rate has changed since (message level).
    FlowEnds(u32),
    /// The last bit of a message is in its destination's memory.
    Delivered(u32),
    /// Something is due on a processor, unless its plans have changed since.
    Processor {
        /// Whose: it is that of this rank of each job.
        rank: u16,
        /// Which plan.
        generation: u32,
    },
    /// A rank's processor looks for a process to boost.
    Boost(u16),
    /// The next job gets all nodes.
    Turn,
}
