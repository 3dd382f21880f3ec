//! Messages and packets on their way.

use super::time::Picoseconds;

/// No message.
pub(super) const NOBODY: u32 = u32::MAX;

/// A message of a run.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) source: u16,
    pub(super) destination: u16,
    pub(super) job: u16,
    /// What has happened to it: [`SEND_CALLED`] and so on.
    pub(super) state: u8,
    pub(super) bytes: u32,
    /// Payload that the sending card hasn't taken yet.
    pub(super) unsent: u32,
    /// Packets that haven't left the receiving card.
    pub(super) packets_left: u32,
    /// The message behind it between the same processes.
    pub(super) next: u32,
    pub(super) begun_at: Picoseconds,
}

/// The sender has called.
pub(super) const SEND_CALLED: u8 = 1;
/// The receiver has said where it may go.
pub(super) const RECEIVE_POSTED: u8 = 2;
/// It is in the receiver's memory.
pub(super) const DELIVERED: u8 = 4;
/// The receiver has taken it.
pub(super) const TAKEN: u8 = 8;

/// A packet of a run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    pub(super) handed: Picoseconds,
    pub(super) message: u32,
    pub(super) bytes: u32,
    pub(super) source: u16,
    pub(super) destination: u16,
    pub(super) job: u16,
    /// Whether it is its message's first one.
    pub(super) first: bool,
}

/// The packets on their way, by number. Buffers bound how many there are.
#[derive(Debug, Default)]
pub(super) struct Packets {
    packets: Vec<Packet>,
    free: Vec<u32>,
}

impl Packets {
    pub(super) fn add(&mut self, packet: Packet) -> u32 {
        if let Some(place) = self.free.pop() {
            self.packets[place as usize] = packet;
            return place;
        }
        self.packets.push(packet);
        (self.packets.len() - 1) as u32
    }

    pub(super) fn get(&self, number: u32) -> Packet {
        self.packets[number as usize]
    }

    pub(super) fn remove(&mut self, number: u32) -> Packet {
        self.free.push(number);
        self.get(number)
    }
}
