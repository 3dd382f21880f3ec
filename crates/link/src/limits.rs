//! Named limits of a session. Each side states its own in the handshake and holds the peer to them.

/// What one side of a session is willing to hold. Hitting a limit is an error that names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest message, head and bulk together. Messages that are half here have at most twice as much together.
    pub message_bytes_max: u64,
    /// The largest number of bulk parts in a message.
    pub bulk_parts_max: u16,
    /// How many links the peer may have open to this side at once.
    pub links_max: u32,
    /// How many bytes the peer may have under way on one link before this side has consumed any. A message may
    /// start while some credit is left, so one link holds at most this and one message.
    pub credit_bytes: u64,
    /// How many bytes of memory the messages take that a session queues; local, not sent to the peer.
    pub queued_bytes_max: u64,
}

impl Limits {
    /// The most bulk parts that the envelope can describe: its lengths must fit in the first record.
    pub const BULK_PARTS_CEILING: u16 = 4096;
    /// The most bytes that a limit of bytes may say.
    pub const BYTES_CEILING: u64 = 1 << 48;
    /// The most control messages that may wait to be written; only a peer that asks and doesn't read gets there.
    pub const CONTROL_QUEUE_MAX: usize = 4096;
    /// The most links that a side may allow.
    pub const LINKS_CEILING: u32 = 1 << 20;
}

impl Default for Limits {
    /// Messages of 1 GiB in 1024 parts, 256 links of 8 MiB credit each, 4 GiB queued.
    fn default() -> Self {
        Self {
            message_bytes_max: 1 << 30,
            bulk_parts_max: 1024,
            links_max: 256,
            credit_bytes: 8 << 20,
            queued_bytes_max: 4 << 30,
        }
    }
}
