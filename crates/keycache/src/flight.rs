//! Messages and packets on their way.

use crate::time::Picoseconds;

/// No message.
pub(crate) const NOBODY: u32 = u32::MAX;

/// A message of a run.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    /// The ranks.
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) job: u16,
    /// What has happened to it: [`SEND_CALLED`] and so on.
    pub(crate) state: u8,
    pub(crate) bytes: u32,
    /// Payload that the sending card hasn't taken yet.
    pub(crate) unsent: u32,
    /// Packets that haven't left the receiving card.
    pub(crate) packets_left: u32,
    /// The message behind it between the same processes.
    pub(crate) next: u32,
    pub(crate) begun_at: Picoseconds,
}

/// The sender has called.
pub(crate) const SEND_CALLED: u8 = 1;
/// The receiver has said where it may go.
pub(crate) const RECEIVE_POSTED: u8 = 2;
/// It is in the receiver's memory.
pub(crate) const DELIVERED: u8 = 4;
/// The receiver has taken it.
pub(crate) const TAKEN: u8 = 8;

/// A packet of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) handed: Picoseconds,
    pub(crate) message: u32,
    pub(crate) bytes: u32,
    /// The nodes.
    pub(crate) source: u16,
    pub(crate) destination: u16,
    /// The processes on them.
    pub(crate) sender: u16,
    pub(crate) receiver: u16,
    pub(crate) job: u16,
    /// Whether it is its message's first one.
    pub(crate) first: bool,
}

/// The packets on their way, by number. Buffers bound how many there are.
#[derive(Debug, Default)]
pub(crate) struct PacketsInFlight {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl PacketsInFlight {
    pub(crate) fn add(&mut self, packet: Packet) -> u32 {
        if let Some(place) = self.free.pop() {
            self.packets[place as usize] = packet;
            return place;
        }
        self.packets.push(packet);
        (self.packets.len() - 1) as u32
    }

    pub(crate) fn get(&self, number: u32) -> Packet {
        self.packets[number as usize]
    }

    pub(crate) fn remove(&mut self, number: u32) -> Packet {
        self.free.push(number);
        self.get(number)
    }
}
