//! The security unit of a card, for one direction.

use crate::parameters::{BLOCK_BYTES, KeySource, Parameters};
use crate::time::Picoseconds;

/// How long AES-GCM takes for packets, and for how long they keep others out of the unit.
#[derive(Clone, Debug)]
pub(crate) struct CipherTiming {
    parameters: Option<CipherParameters>,
    /// Most packets are full ones: their times are computed once.
    full_bytes: u32,
    full: CipherTime,
}

#[derive(Clone, Copy, Debug)]
struct CipherParameters {
    frequency: u64,
    start: u64,
    block: u64,
    tag: u64,
    pipelined: bool,
}

/// Of one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CipherTime {
    /// From its first block into the unit until its tag.
    pub(crate) delay: Picoseconds,
    /// Until the next packet may begin.
    pub(crate) occupied: Picoseconds,
}

impl CipherTiming {
    pub(crate) fn new(parameters: &Parameters) -> Self {
        let mut timing = Self {
            parameters: (parameters.keys != KeySource::None).then_some(CipherParameters {
                frequency: parameters.cipher_frequency_hz,
                start: parameters.cipher_start_cycles.into(),
                block: parameters.cipher_block_cycles.into(),
                tag: parameters.cipher_tag_cycles.into(),
                pipelined: parameters.cipher_pipelined,
            }),
            full_bytes: u32::MAX,
            full: CipherTime::default(),
        };
        timing.full = timing.of(parameters.packet_payload_bytes);
        timing.full_bytes = parameters.packet_payload_bytes;
        timing
    }

    /// Of a packet with so many bytes of payload. Nothing if there is no security.
    pub(crate) fn of(&self, bytes: u32) -> CipherTime {
        if bytes == self.full_bytes {
            return self.full;
        }
        let Some(cipher) = self.parameters else {
            return CipherTime::default();
        };
        let blocks = u64::from(bytes.div_ceil(BLOCK_BYTES)) * cipher.block;
        let cycles = cipher.start + blocks + cipher.tag;
        let occupied = if cipher.pipelined {
            blocks.max(1)
        } else {
            cycles
        };
        CipherTime {
            delay: Picoseconds::for_count(cycles, cipher.frequency),
            occupied: Picoseconds::for_count(occupied, cipher.frequency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Section 4.1 of the paper: 30 cycles for 256 bytes, 60 one way, about 220 ns.
    #[test]
    fn takes_what_the_paper_counts() {
        let timing = CipherTiming::new(&Parameters::default());
        assert_eq!(timing.of(256).delay, Picoseconds(111_111));
        assert_eq!(timing.of(0).delay, Picoseconds(51_852));
        assert_eq!(timing.of(17).delay, Picoseconds(59_259));
        assert_eq!(timing.of(256).occupied, Picoseconds(59_259));
    }
}
