//! Scenarios from seeds.

use std::time::Duration;

use exoskel_determinism::SplitMix64;
use exoskel_link::Protection;

use super::scenario::{
    BindingScenario, NODES_MAX, PeersFault, PeersFaultKind, PeersScenario, PeersShape,
};
use crate::network::LinkModel;

/// How long links wait. Short faults are far shorter, long ones longer.
const PATIENCE: Duration = Duration::from_secs(60);

impl PeersScenario {
    /// The scenario of a seed.
    pub fn from_seed(seed: u64) -> Self {
        Self::shaped(seed, &PeersShape::default())
    }

    /// The scenario of a seed that has this shape.
    pub fn shaped(seed: u64, shape: &PeersShape) -> Self {
        let mut random = SplitMix64::new(seed ^ 0x11_4B5A_11D9_EE25);
        let count = 2 + random.below(3) as usize;
        let count = shape.nodes.unwrap_or(count).clamp(2, NODES_MAX);
        let mut pick = |choices: &[u64]| choices[random.below(choices.len() as u64) as usize];
        let link = LinkModel {
            latency: Duration::from_micros(pick(&[20, 500, 20_000])),
            jitter: Duration::from_micros(pick(&[0, 50, 5000])),
            bytes_per_second: pick(&[1 << 22, 1 << 28]),
        };
        let (dead_after, credit_bytes) = (
            Duration::from_millis(pick(&[1000, 3000])),
            pick(&[4 << 10, 64 << 10, 1 << 20]),
        );
        let bindings = 1 + random.below(6) as usize;
        let bindings = 0..shape.links.unwrap_or(bindings).max(1);
        let mut bindings: Vec<_> = bindings.map(|_| binding(&mut random, count)).collect();
        for binding in &mut bindings {
            binding.messages = shape.messages.unwrap_or(binding.messages);
        }
        let mut scenario = Self {
            seed,
            // One of four runs has two processes of one name.
            peers: (0..count)
                .map(|peer| {
                    if peer == 1 && seed.is_multiple_of(4) {
                        0
                    } else {
                        peer
                    }
                })
                .collect(),
            bindings,
            link,
            dead_after,
            patience: PATIENCE,
            credit_bytes,
            certificates_last: None,
            faults: Vec::new(),
            mischief: None,
        };
        scenario.faults = faults(&mut random, shape, count, scenario.bindings.len());
        scenario.widen(&mut SplitMix64::new(seed ^ 0x51DE_0A11), shape);
        scenario
    }

    /// What is drawn from numbers of its own, so that all else stays what it was.
    fn widen(&mut self, random: &mut SplitMix64, shape: &PeersShape) {
        let count = self.peers.len();
        // Several processes with one certificate.
        for peer in 2..count {
            if random.below(8) == 0 {
                self.peers[peer] = random.below(peer as u64) as usize;
            }
        }
        for binding in &mut self.bindings {
            binding.is_looked_up = random.below(5) == 0;
            let expires = Duration::from_secs(1 + random.below(12));
            if random.below(6) == 0 && shape.allows(PeersFaultKind::Expire) && !binding.is_looked_up
            {
                binding.expires = Some(expires);
            }
        }
        let lasting = random.between(Duration::from_secs(1), Duration::from_secs(8));
        if random.below(6) == 0 && shape.allows(PeersFaultKind::Certificates) {
            self.certificates_last = Some(lasting);
        }
        for _ in 0..random.below(3) {
            let at = random.between(Duration::ZERO, Duration::from_secs(12));
            let peer = random.below(count as u64) as usize;
            let restart = random.between(Duration::ZERO, Duration::from_secs(3));
            let protection = Protection::ALL[random.below(3) as usize];
            let binding = random.below(self.bindings.len() as u64) as usize;
            let (kind, fault) = match random.below(5) {
                0 | 1 => (PeersFaultKind::Leave, PeersFault::Leave { peer, restart }),
                2 | 3 => (PeersFaultKind::Renew, PeersFault::Renew(peer, protection)),
                _ => (PeersFaultKind::Bar, PeersFault::Bar(binding)),
            };
            if shape.allows(kind) {
                self.faults.push((at, fault));
            }
        }
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Two peers that bind each other's endpoints at the same moment.
    pub fn both_dial(seed: u64) -> Self {
        let mut random = SplitMix64::new(seed);
        let mut scenario = Self::from_seed(seed);
        scenario.peers = vec![0, 1];
        scenario.faults.clear();
        scenario.certificates_last = None;
        let binding = |owner: usize, late: u64| BindingScenario {
            owner,
            holder: 1 - owner,
            begins_at: Duration::from_micros(late),
            messages: 30,
            requests_one_in: 2,
            pause: Duration::from_millis(1),
            bytes_max: 2000,
            protection: Protection::Plain,
            is_foreign: false,
            is_narrowed: false,
            requires_at: None,
            is_looked_up: false,
            expires: None,
        };
        let latency = scenario.link.latency.as_micros() as u64;
        scenario.bindings = vec![
            binding(0, random.below(4 * latency)),
            binding(1, random.below(4 * latency)),
        ];
        scenario
    }

    /// The same with messages that don't wait until their link is open. In every second run connections are cut meanwhile.
    pub fn early(seed: u64) -> Self {
        let mut scenario = Self::both_dial(seed);
        for binding in &mut scenario.bindings {
            binding.protection = Protection::Encrypted;
        }
        if seed.is_multiple_of(2) {
            return scenario;
        }
        let mut random = SplitMix64::new(seed ^ 0xEA_71E5);
        let opening = scenario.link.latency * 12;
        let cuts = (0..1 + random.below(3)).map(|_| {
            let at = random.between(Duration::ZERO, opening);
            (at, PeersFault::Cut(0, 1))
        });
        scenario.faults = cuts.collect();
        scenario.faults.sort_by_key(|(at, _)| *at);
        scenario
    }
}

fn binding(random: &mut SplitMix64, peers: usize) -> BindingScenario {
    let owner = random.below(peers as u64) as usize;
    let holder = (owner + 1 + random.below(peers as u64 - 1) as usize) % peers;
    let [plain, integrity, encrypted] = Protection::ALL;
    let protections = [plain, plain, integrity, encrypted];
    BindingScenario {
        owner,
        holder,
        begins_at: random.between(Duration::ZERO, Duration::from_millis(300)),
        messages: 10 + random.below(150),
        requests_one_in: [1, 2, 5, 1 << 40][random.below(4) as usize],
        pause: random.between(Duration::ZERO, Duration::from_millis(200)),
        bytes_max: [0, 200, 5000, 30_000][random.below(4) as usize],
        protection: protections[random.below(4) as usize],
        is_foreign: random.below(8) == 0,
        is_narrowed: random.below(6) == 0,
        requires_at: (random.below(4) == 0).then(|| random.below(60)),
        is_looked_up: false,
        expires: None,
    }
}

fn faults(
    random: &mut SplitMix64,
    shape: &PeersShape,
    peers: usize,
    bindings: usize,
) -> Vec<(Duration, PeersFault)> {
    let mut faults = Vec::new();
    for _ in 0..random.below(7) {
        let at = random.between(Duration::ZERO, Duration::from_secs(12));
        let one = random.below(peers as u64) as usize;
        let other = (one + 1 + random.below(peers as u64 - 1) as usize) % peers;
        let lasting = match random.below(10) {
            0 => PATIENCE * 2,
            _ => random.between(Duration::from_millis(10), Duration::from_secs(4)),
        };
        let until = at + lasting;
        let (kind, happens) = match random.below(12) {
            0..4 => (PeersFaultKind::Cut, vec![(at, PeersFault::Cut(one, other))]),
            4 => (
                PeersFaultKind::OneWay,
                vec![
                    (until, PeersFault::Repair(one, other)),
                    (at, PeersFault::Partition(one, other)),
                ],
            ),
            5 => (
                PeersFaultKind::Partition,
                vec![
                    (until, PeersFault::Repair(one, other)),
                    (until, PeersFault::Repair(other, one)),
                    (at, PeersFault::Partition(other, one)),
                    (at, PeersFault::Partition(one, other)),
                ],
            ),
            6 => (
                PeersFaultKind::Stop,
                vec![
                    (until, PeersFault::Release(one)),
                    (at, PeersFault::Hold(one)),
                ],
            ),
            7 => {
                let fault = PeersFault::Kill {
                    peer: one,
                    silent: random.below(2) == 0,
                    restart: random.between(Duration::ZERO, Duration::from_secs(3)),
                };
                (PeersFaultKind::Kill, vec![(at, fault)])
            }
            8 => (
                PeersFaultKind::Alter,
                vec![(at, PeersFault::Alter(one, other))],
            ),
            9 | 10 => {
                let demanded = [Protection::Integrity, Protection::Encrypted];
                let fault = PeersFault::Raise(one, demanded[random.below(2) as usize]);
                (PeersFaultKind::Raise, vec![(at, fault)])
            }
            _ => {
                let fault = PeersFault::Revoke(random.below(bindings as u64) as usize);
                (PeersFaultKind::Revoke, vec![(at, fault)])
            }
        };
        // What isn't allowed is drawn all the same: the others stay where they are.
        if shape.allows(kind) {
            faults.extend(happens);
        }
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}
