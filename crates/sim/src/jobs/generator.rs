//! Scenarios from seeds.

use std::time::Duration;

use exoskel_determinism::SplitMix64;

use super::scenario::{JobGroupScenario, JobsEnd, JobsFault, JobsScenario, PlayedProgram};

const HOSTS_MAX: u64 = 5;
const GROUPS_MAX: u64 = 5;
const FAULTS_MAX: u64 = 7;
/// Faults happen until then, and the job ends some time after, if not by one of them.
const FAULTS_UNTIL: Duration = Duration::from_secs(12);

impl JobsScenario {
    /// What a seed is made of.
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let random = &mut SplitMix64::new(seed ^ 0x0010_B500);
        let hosts = (0..=random.below(HOSTS_MAX))
            .map(|_| (random.below(5) == 0).then(|| 1 + random.below(8) as usize));
        let hosts: Vec<_> = hosts.collect();
        let latency = [
            (Duration::from_micros(50), Duration::from_micros(100)),
            (Duration::from_millis(1), Duration::from_millis(5)),
            (Duration::from_millis(100), Duration::from_millis(400)),
        ];
        let groups = (0..=random.below(GROUPS_MAX)).map(|_| group(random));
        let mut groups: Vec<_> = groups.collect();
        let faults = faults(random, hosts.len());
        let end = match random.below(6) {
            0 => JobsEnd::Killed,
            1 => JobsEnd::Left,
            _ => JobsEnd::Closed,
        };
        if end == JobsEnd::Left {
            // What never returns would never end.
            let endless = groups.iter_mut().filter(|group| {
                matches!(
                    group.program,
                    PlayedProgram::Slot { .. } | PlayedProgram::Liar
                )
            });
            endless.for_each(|group| group.program = PlayedProgram::Function { fails_one_in: 0 });
        }
        // Some jobs end while all begins.
        let ends_at = match random.below(3) {
            0 => random.between(Duration::from_millis(10), Duration::from_secs(4)),
            _ => Duration::from_secs(150),
        };
        Self {
            seed,
            hosts,
            latency: latency[random.below(3) as usize],
            forks_within: match random.below(5) {
                0 => Duration::from_secs(4),
                _ => Duration::from_millis(10),
            },
            groups,
            faults,
            end,
            ends_at,
            mischief: None,
        }
    }
}

fn group(random: &mut SplitMix64) -> JobGroupScenario {
    let program = match random.below(8) {
        0..3 => PlayedProgram::Function {
            fails_one_in: [0, 0, 4][random.below(3) as usize],
        },
        3..5 => PlayedProgram::Slot {
            fails_one_in: [0, 0, 0, 3, 1][random.below(5) as usize],
        },
        5 if random.below(3) == 0 => PlayedProgram::Liar,
        _ => PlayedProgram::Program {
            lasts: [
                Duration::from_millis(50),
                Duration::from_secs(3),
                Duration::from_secs(600),
            ][random.below(3) as usize],
            is_stubborn: random.below(3) == 0,
        },
    };
    JobGroupScenario {
        begins_at: random.between(Duration::ZERO, Duration::from_secs(3)),
        count: 1 + random.below(9) as u32,
        program,
    }
}

fn faults(random: &mut SplitMix64, hosts: usize) -> Vec<(Duration, JobsFault)> {
    let mut faults = Vec::new();
    for _ in 0..random.below(FAULTS_MAX) {
        let at = random.between(Duration::ZERO, FAULTS_UNTIL);
        let host = random.below(hosts as u64) as usize;
        let short = random.between(Duration::from_millis(10), Duration::from_secs(8));
        let fault = match random.below(20) {
            0..2 => JobsFault::KillAgent(host),
            2..4 => JobsFault::KillZygote(host),
            4..12 => JobsFault::KillProcess(host),
            12..15 => JobsFault::Cut(host, short),
            15 => JobsFault::Cut(host, 5 * short),
            16..18 => JobsFault::Delay(host, short / 4, short),
            18 => JobsFault::EndOnHost(host),
            _ => JobsFault::KillCreator,
        };
        faults.push((at, fault));
    }
    faults.sort_by_key(|(at, _)| *at);
    faults
}
