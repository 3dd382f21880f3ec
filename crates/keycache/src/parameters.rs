//! Everything that can be set about a run, as a scenario file has it.
//!
//! The names carry their units. The defaults are the card of Lee, An and Kim (JPDC 2010), section 4.1, and, for what the paper
//! doesn't state, InfiniBand of its time: see each field.

use serde::{Deserialize, Serialize};
use toml::Table;

use crate::error::KeycacheError;
use crate::sequence::ReplacementPolicy;

/// Most nodes of a run, and most ranks of a job, with all that there is room for on these nodes.
const NODES_MAX: u32 = 1 << 12;
/// Longest time that a parameter may name, in nanoseconds: a day.
const PARAMETER_NS_MAX: u64 = 86_400_000_000_000;
/// Longest time that a packet may need anywhere, in nanoseconds: a second.
const PACKET_NS_MAX: u64 = 1_000_000_000;
/// Most packets that a buffer may hold.
const BUFFER_PACKETS_MAX: u32 = 1 << 16;
/// Largest payload of a packet.
const PACKET_PAYLOAD_MAX: u32 = 1 << 20;
/// Fastest link and fastest cipher: beyond it a byte or a cycle would be less than a picosecond.
const RATE_MAX: u64 = 1_000_000_000_000;
/// Most entries of a cache.
const ENTRIES_MAX: u32 = 1 << 20;
/// Most entries of the caches of all nodes together: they take some 100 bytes each.
const ENTRIES_OF_ALL_MAX: u64 = 1 << 23;
/// Most cycles that a stage of the cipher may take.
const CYCLES_MAX: u32 = 1 << 16;
/// Bytes of a cipher block.
pub(crate) const BLOCK_BYTES: u32 = 16;
/// Most accesses of the key memory at one time.
const ACCESSES_MAX: u32 = 1 << 10;

/// How finely the network is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Packets through cards, links with credit and a switch.
    Packet,
    /// Messages: latency, then a fair share of the links at both ends. No cards, no keys.
    Message,
}

/// How packets cross the switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SwitchKind {
    /// A packet waits for its output only, in a queue per output; its buffer is its input's.
    OutputQueued,
    /// A queue per input: the first packet of an input holds up those behind it, and an input passes one packet at a time.
    Crossbar,
}

/// When the switch begins to send a packet on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Forwarding {
    /// With its first bit, as InfiniBand's switches do.
    CutThrough,
    /// After its last bit.
    StoreAndForward,
}

/// Where the cards get keys from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeySource {
    /// There is no security: the paper's NoSecurity.
    None,
    /// From the memory outside the chip, for each lookup: the paper's NoSKC.
    Memory,
    /// From the session-key cache, and from that memory on a miss: the paper's SKC-n.
    Cache,
    /// Derived from a master key for each lookup, as PSP does.
    Derive,
    /// From a table on the chip that has them all.
    Table,
}

/// What needs a key lookup of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LookupUnit {
    /// Each packet, as the paper has it.
    Packet,
    /// The first packet of each message; the others use its key.
    Message,
}

/// Who runs on a node's processor, and what a process does while it waits for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SchedulerKind {
    /// One job after the other, each alone on all nodes.
    Batch,
    /// Each node for itself, like Linux 2.6: quanta, and priority for who slept. Who waits spins.
    Local,
    /// As local, but who waits spins for a time and then blocks (SB).
    SpinBlock,
    /// As spin-block, and a message for a blocked process gives it the processor (DCS-SB).
    DynamicCoscheduling,
    /// As local, and from time to time a process with messages that it hasn't taken gets the processor (PB).
    PeriodicBoost,
    /// All nodes run one job for a slice, then all the next one.
    Gang,
}

impl SchedulerKind {
    /// The word in a scenario.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::Local => "local",
            Self::SpinBlock => "spin-block",
            Self::DynamicCoscheduling => "dynamic-coscheduling",
            Self::PeriodicBoost => "periodic-boost",
            Self::Gang => "gang",
        }
    }
}

/// The parameters of a run. See the fields for units and reasons.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameters {
    /// Packets or messages.
    pub level: Level,
    /// Nodes at the switch, with a card each; at least as many as a trace needs for its ranks.
    pub nodes: u32,
    /// Ranks of a job on a node, consecutive ones: they share its card, and with it the key cache, and have a processor each. It divides each trace's number
    /// of ranks. What they send each other doesn't leave the node: it takes no time, as what a rank sends itself, and needs no key. The paper has one.
    pub ranks_per_card: u32,
    /// The traces' gaps of computation times this. Our traces come from a processor that is some 70 to 250 times as fast as
    /// the paper's, by the completion times of its table 1.
    pub compute_percent: u32,
    /// Each gap is changed by up to this share, evenly distributed, by the seed.
    pub compute_jitter_ppm: u32,
    /// Each node begins at a time up to this, by the seed.
    pub start_spread_ns: u64,
    /// A job ends when so many of its messages have been delivered; 0: at the end of its trace.
    pub message_limit: u64,
    /// A larger message waits until its receive has been posted, and its send lasts until it is delivered (MPI's rendezvous, whose own
    /// control messages are left out). 64 KiB is SimGrid's default.
    pub eager_bytes: u64,
    /// Most packets of a message; what doesn't fit into them is left out. 0: as many as its bytes need. 1: each message is a packet, as in traces that list
    /// who sent to whom and when, and no sizes. The paper's are described like that.
    pub message_packets_max: u32,

    /// Of each link, in each direction. 1 GB/s: InfiniBand 4x at single data rate, without its 8b/10b code.
    pub link_rate_bytes_per_second: u64,
    /// Of each of the two links that a packet passes. 25 ns: five metres of cable.
    pub link_latency_ns: u64,
    /// How packets cross the switch.
    pub switch_kind: SwitchKind,
    /// When packets leave it.
    pub switch_forwarding: Forwarding,
    /// From a packet's arrival to its departure, if nothing is before it. 200 ns: InfiniBand switches of 2004.
    pub switch_latency_ns: u64,
    /// Packets that the switch holds for each input. The card sends none that has no place there.
    pub switch_buffer_packets: u32,
    /// Packets that a card holds for each direction. The switch sends none that has no place there.
    pub card_buffer_packets: u32,
    /// What embedded processor and host bus take for a packet, in each of the two cards; packets overlap in it. 1.2 us each make a one-way
    /// latency of 2.7 us for 32 bytes and 2.9 us for 256; the paper's overheads imply 2.8 and 3.3 (see `docs/key-cache-engine.md`).
    pub card_processing_ns: u64,
    /// Largest payload of a packet: the paper's 256 bytes.
    pub packet_payload_bytes: u32,
    /// Beside the payload, on the link: InfiniBand's local route and transport headers and checks.
    pub packet_header_bytes: u32,

    /// Where keys come from.
    pub keys: KeySource,
    /// What needs a lookup.
    pub lookup_unit: LookupUnit,
    /// Keys in the cache of a card.
    pub cache_entries: u32,
    /// Places in the cache where a key may be; 0: all.
    pub cache_ways: u32,
    /// What a full cache gives up.
    pub cache_policy: ReplacementPolicy,
    /// Of a lookup in cache or table. 3 ns: the paper, from CACTI.
    pub cache_access_ns: u64,
    /// Keys in the prefetch buffer beside the cache; 0: none, and no prefetching.
    pub prefetch_buffer_entries: u32,
    /// Frequent keys that are remembered of each process.
    pub prefetch_list_entries: u32,
    /// Of an access to the memory outside the chip. 2.5 us: the paper.
    pub key_memory_ns: u64,
    /// Accesses to that memory that may overlap; further ones wait. The paper doesn't say. Eight, one for each packet that a card holds, together with four
    /// packets for each direction come close to its overheads without cache for 32, 256 and 2048 bytes; with one access at a time they are many times as large.
    pub key_memory_accesses_in_flight: u32,
    /// What a key from that memory has to be decrypted for, as the memory is outside the protected chip. The paper charges nothing.
    pub key_decrypt_ns: u64,
    /// Of a key derivation; packets overlap in it. 89 ns: two AES blocks of 12 cycles at 270 MHz.
    pub derivation_ns: u64,
    /// Whether the receiving card looks the key up with the packet's first bit and not after its last one. The paper doesn't say.
    pub receive_lookup_overlaps_arrival: bool,
    /// Clock of the security unit. 270 MHz: the paper. Times are rounded to the picosecond once for each packet.
    pub cipher_frequency_hz: u64,
    /// Cycles before the first block. The paper counts 12 + 16 + 2 = 30 for 256 bytes: twelve, and one for each of the sixteen blocks.
    pub cipher_start_cycles: u32,
    /// Cycles for each 16 bytes.
    pub cipher_block_cycles: u32,
    /// Cycles for the tag.
    pub cipher_tag_cycles: u32,
    /// Whether a packet may follow into the unit behind another one's last block, or has to wait for its tag. The unit that the paper takes its
    /// cycles from makes 35 Gbit/s at 271 MHz: a block each cycle.
    pub cipher_pipelined: bool,

    /// Who runs.
    pub scheduler: SchedulerKind,
    /// What it costs to change to another process.
    pub context_switch_ns: u64,
    /// How long a process may run before others of its priority do. 100 ms: Linux 2.6.
    pub quantum_ns: u64,
    /// Sleep that earns the best priority. 1 s: Linux 2.6.
    pub sleep_bonus_ns: u64,
    /// How long a process spins before it blocks (spin-block, dynamic coscheduling). 750 us: the paper.
    pub spin_ns: u64,
    /// How often a process is boosted (periodic boost). 2 ms: the paper.
    pub boost_period_ns: u64,
    /// How long a job has all nodes (gang). 20 ms: the paper.
    pub gang_slice_ns: u64,
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            level: Level::Packet,
            nodes: 16,
            ranks_per_card: 1,
            compute_percent: 100,
            compute_jitter_ppm: 10_000,
            start_spread_ns: 100_000,
            message_limit: 0,
            eager_bytes: 65_536,
            message_packets_max: 0,
            link_rate_bytes_per_second: 1_000_000_000,
            link_latency_ns: 25,
            switch_kind: SwitchKind::OutputQueued,
            switch_forwarding: Forwarding::CutThrough,
            switch_latency_ns: 200,
            switch_buffer_packets: 16,
            card_buffer_packets: 4,
            card_processing_ns: 1_200,
            packet_payload_bytes: 256,
            packet_header_bytes: 26,
            keys: KeySource::Cache,
            lookup_unit: LookupUnit::Packet,
            cache_entries: 6,
            cache_ways: 0,
            cache_policy: ReplacementPolicy::LeastRecentlyUsed,
            cache_access_ns: 3,
            prefetch_buffer_entries: 0,
            prefetch_list_entries: 8,
            key_memory_ns: 2_500,
            key_memory_accesses_in_flight: 8,
            key_decrypt_ns: 0,
            derivation_ns: 89,
            receive_lookup_overlaps_arrival: false,
            cipher_frequency_hz: 270_000_000,
            cipher_start_cycles: 12,
            cipher_block_cycles: 1,
            cipher_tag_cycles: 2,
            cipher_pipelined: true,
            scheduler: SchedulerKind::Batch,
            context_switch_ns: 5_000,
            quantum_ns: 100_000_000,
            sleep_bonus_ns: 1_000_000_000,
            spin_ns: 750_000,
            boost_period_ns: 2_000_000,
            gang_slice_ns: 20_000_000,
        }
    }
}

impl Parameters {
    /// The names that [`Self::preset`] knows: the paper's card; the same one without security, without cache, with derived keys, with a
    /// table; and a card of today.
    pub const PRESETS: [&'static str; 6] = [
        "paper",
        "no-security",
        "no-cache",
        "psp",
        "ready-table",
        "modern",
    ];

    /// A set of parameters by its name.
    ///
    /// # Errors
    /// [`KeycacheError::Preset`] for a name that isn't in [`Self::PRESETS`].
    pub fn preset(name: &str) -> Result<Self, KeycacheError> {
        let keys = |keys| Self {
            keys,
            ..Self::default()
        };
        match name {
            "paper" => Ok(Self::default()),
            "no-security" => Ok(keys(KeySource::None)),
            "no-cache" => Ok(keys(KeySource::Memory)),
            "psp" => Ok(keys(KeySource::Derive)),
            "ready-table" => Ok(keys(KeySource::Table)),
            "modern" => Ok(Self::modern()),
            other => Err(KeycacheError::Preset {
                got: other.to_owned(),
                expected: Self::PRESETS.join(", "),
            }),
        }
    }

    /// A card of today: 100 Gbit/s, 4 KiB packets, one cipher block a cycle at 1 GHz, keys in the host's memory over PCIe (0.8 us, many reads at
    /// a time) behind a cache of 1,024. An assumption for comparisons: no maker states these figures.
    fn modern() -> Self {
        Self {
            link_rate_bytes_per_second: 12_500_000_000,
            switch_latency_ns: 100,
            switch_buffer_packets: 64,
            card_buffer_packets: 64,
            card_processing_ns: 300,
            packet_payload_bytes: 4096,
            packet_header_bytes: 66,
            cache_entries: 1024,
            cache_ways: 16,
            cache_access_ns: 2,
            prefetch_list_entries: 16,
            key_memory_ns: 800,
            key_memory_accesses_in_flight: 16,
            derivation_ns: 24,
            receive_lookup_overlaps_arrival: true,
            cipher_frequency_hz: 1_000_000_000,
            context_switch_ns: 2_000,
            ..Self::default()
        }
    }

    /// The parameters of a scenario: flat TOML. `preset` names those to begin with, "paper" by default.
    ///
    /// # Errors
    /// [`KeycacheError`] for text that isn't TOML, for a key that is unknown or has no such value, for an impossible value; it names the key.
    pub fn from_toml(text: &str) -> Result<Self, KeycacheError> {
        let unreadable = |reason: toml::de::Error| KeycacheError::Scenario {
            reason: reason.to_string().trim_end().to_owned(),
        };
        let mut given: Table = toml::from_str(text).map_err(unreadable)?;
        let base = match given.remove("preset") {
            None => Self::default(),
            Some(toml::Value::String(name)) => Self::preset(&name)?,
            Some(other) => {
                return Err(KeycacheError::Scenario {
                    reason: format!("got preset = {other}, expected a name in quotes"),
                });
            }
        };
        let mut all = base.table();
        all.extend(given);
        let parameters: Self = all.try_into().map_err(unreadable)?;
        parameters.validate()?;
        Ok(parameters)
    }

    /// All parameters as TOML, in the order of the fields: what [`Self::from_toml`] reads.
    pub fn to_toml(&self) -> String {
        // Nothing but numbers, names and truth values: these have a form in TOML.
        toml::to_string(self).unwrap_or_default()
    }

    fn table(&self) -> Table {
        Table::try_from(self).unwrap_or_default()
    }

    /// Whether a run with them is possible.
    ///
    /// # Errors
    /// [`KeycacheError::Parameter`] names the first that can't be.
    pub fn validate(&self) -> Result<(), KeycacheError> {
        let entries_max = u64::from(ENTRIES_MAX);
        let buffer_max = u64::from(BUFFER_PACKETS_MAX);
        let cycles_max = u64::from(CYCLES_MAX);
        #[rustfmt::skip]
        let ranges: [(&'static str, u64, u64, u64); 33] = [
            ("nodes", self.nodes.into(), 1, NODES_MAX.into()),
            ("ranks_per_card", self.ranks_per_card.into(), 1, NODES_MAX.into()),
            ("compute_percent", self.compute_percent.into(), 0, 10_000_000),
            ("compute_jitter_ppm", self.compute_jitter_ppm.into(), 0, 1_000_000),
            ("start_spread_ns", self.start_spread_ns, 0, PARAMETER_NS_MAX),
            ("message_limit", self.message_limit, 0, i64::MAX as u64),
            ("eager_bytes", self.eager_bytes, 0, i64::MAX as u64),
            ("message_packets_max", self.message_packets_max.into(), 0, u32::MAX.into()),
            ("link_rate_bytes_per_second", self.link_rate_bytes_per_second, 1, RATE_MAX),
            ("link_latency_ns", self.link_latency_ns, 0, PACKET_NS_MAX),
            ("switch_latency_ns", self.switch_latency_ns, 0, PACKET_NS_MAX),
            ("switch_buffer_packets", self.switch_buffer_packets.into(), 1, buffer_max),
            ("card_buffer_packets", self.card_buffer_packets.into(), 1, buffer_max),
            ("card_processing_ns", self.card_processing_ns, 0, PACKET_NS_MAX),
            ("packet_payload_bytes", self.packet_payload_bytes.into(), 1, PACKET_PAYLOAD_MAX.into()),
            ("packet_header_bytes", self.packet_header_bytes.into(), 0, PACKET_PAYLOAD_MAX.into()),
            ("cache_entries", self.cache_entries.into(), 1, entries_max),
            ("cache_ways", self.cache_ways.into(), 0, self.cache_entries.into()),
            ("cache_access_ns", self.cache_access_ns, 0, PACKET_NS_MAX),
            ("prefetch_buffer_entries", self.prefetch_buffer_entries.into(), 0, 1024),
            ("prefetch_list_entries", self.prefetch_list_entries.into(), 1, 1024),
            ("key_memory_ns", self.key_memory_ns, 0, PACKET_NS_MAX),
            ("key_memory_accesses_in_flight", self.key_memory_accesses_in_flight.into(), 1, ACCESSES_MAX.into()),
            ("key_decrypt_ns", self.key_decrypt_ns, 0, PACKET_NS_MAX),
            ("derivation_ns", self.derivation_ns, 0, PACKET_NS_MAX),
            ("cipher_frequency_hz", self.cipher_frequency_hz, 1, RATE_MAX),
            ("cipher_start_cycles", self.cipher_start_cycles.into(), 0, cycles_max),
            ("cipher_block_cycles", self.cipher_block_cycles.into(), 0, cycles_max),
            ("cipher_tag_cycles", self.cipher_tag_cycles.into(), 0, cycles_max),
            ("context_switch_ns", self.context_switch_ns, 0, PARAMETER_NS_MAX),
            ("quantum_ns", self.quantum_ns, 1, PARAMETER_NS_MAX),
            ("sleep_bonus_ns", self.sleep_bonus_ns, 1, PARAMETER_NS_MAX),
            ("spin_ns", self.spin_ns, 0, PARAMETER_NS_MAX),
        ];
        let periods = [
            ("boost_period_ns", self.boost_period_ns),
            ("gang_slice_ns", self.gang_slice_ns),
        ]
        .map(|(name, value)| (name, value, 1, PARAMETER_NS_MAX));
        for (name, got, least, most) in ranges.into_iter().chain(periods) {
            if !(least..=most).contains(&got) {
                return Err(KeycacheError::Parameter {
                    name,
                    got,
                    expected: format!("{least} ..= {most}"),
                });
            }
        }
        self.validate_switching()?;
        self.validate_packets()?;
        let nodes = u64::from(self.nodes);
        if self.ranks() > NODES_MAX {
            return Err(KeycacheError::Parameter {
                name: "ranks_per_card",
                got: self.ranks_per_card.into(),
                expected: format!("at most {} with {nodes} nodes", NODES_MAX / self.nodes),
            });
        }
        if nodes * u64::from(self.cache_entries) > ENTRIES_OF_ALL_MAX {
            return Err(KeycacheError::Parameter {
                name: "cache_entries",
                got: self.cache_entries.into(),
                expected: format!("at most {} with {nodes} nodes", ENTRIES_OF_ALL_MAX / nodes),
            });
        }
        let ways = self.cache_ways;
        if ways > 0 && !self.cache_entries.is_multiple_of(ways) {
            return Err(KeycacheError::Parameter {
                name: "cache_ways",
                got: ways.into(),
                expected: format!(
                    "a divisor of cache_entries = {}, or 0 for all",
                    self.cache_entries
                ),
            });
        }
        Ok(())
    }

    /// How many ranks of a job the nodes have room for.
    pub(crate) fn ranks(&self) -> u32 {
        self.nodes.saturating_mul(self.ranks_per_card)
    }

    /// Whether links and ciphers are done with a packet within a second.
    fn validate_packets(&self) -> Result<(), KeycacheError> {
        let bytes = u64::from(self.packet_payload_bytes) + u64::from(self.packet_header_bytes);
        let blocks = u64::from(self.packet_payload_bytes.div_ceil(BLOCK_BYTES));
        let cycles = u64::from(self.cipher_start_cycles)
            + blocks * u64::from(self.cipher_block_cycles)
            + u64::from(self.cipher_tag_cycles);
        for (name, got, least) in [
            (
                "link_rate_bytes_per_second",
                self.link_rate_bytes_per_second,
                bytes,
            ),
            ("cipher_frequency_hz", self.cipher_frequency_hz, cycles),
        ] {
            if got < least {
                return Err(KeycacheError::Parameter {
                    name,
                    got,
                    expected: format!(
                        "at least {least}, to be done with the largest packet within a second"
                    ),
                });
            }
        }
        Ok(())
    }

    /// Whether processes get further than changing places.
    fn validate_switching(&self) -> Result<(), KeycacheError> {
        let (name, got) = match self.scheduler {
            SchedulerKind::Gang => ("gang_slice_ns", self.gang_slice_ns),
            SchedulerKind::PeriodicBoost => ("boost_period_ns", self.boost_period_ns),
            _ => return Ok(()),
        };
        if got > self.context_switch_ns {
            return Ok(());
        }
        Err(KeycacheError::Parameter {
            name,
            got,
            expected: format!("more than context_switch_ns = {}", self.context_switch_ns),
        })
    }
}
