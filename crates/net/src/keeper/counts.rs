//! What connections have moved: read from the boards of this host's members, and from the last words of those on others.

use exoskel_transfer::{
    ConnectionState, ConnectionTerms, Coupler, GoneMember, KeeperReport, MemoryId, TakenVersions,
    Variable, ranks_of,
};

use super::waits::missing;
use super::{ConnectionReport, Inside};

impl Inside {
    pub(super) fn connection_report(&self, coupler: &Coupler, number: usize) -> ConnectionReport {
        let terms = &coupler.coupling().connections()[number];
        let status = &coupler.connections()[number];
        let taken = self.taken_by_all(coupler, number);
        let versions = taken.as_ref().map(|taken| {
            let least = taken.iter().map(|(_, taken)| taken.version).min();
            match least.unwrap_or(0) {
                0 => 0,
                last => (last - 1) / terms.every.max(1) + 1,
            }
        });
        // Members write these numbers.
        let sum = |taken: &Vec<(u32, TakenVersions)>| {
            let bytes = taken.iter().map(|(_, taken)| taken.bytes);
            bytes.fold(0, u64::saturating_add)
        };
        let slowest = |taken: &Vec<(u32, TakenVersions)>| {
            let times = taken.iter().map(|(_, taken)| taken.nanoseconds);
            times.max().unwrap_or(0)
        };
        let copies = taken.as_ref().filter(|_| !status.is_between_hosts);
        let unmoved = taken
            .as_ref()
            .filter(|_| versions == Some(0) && status.state == ConnectionState::Ready)
            .map(|taken| self.unmoved(coupler, terms, taken));
        ConnectionReport {
            name: status.name.clone(),
            state: status.state.clone(),
            versions,
            bytes: taken.as_ref().map(sum),
            nanoseconds: copies.map(slowest),
            unmoved,
            is_between_hosts: status.is_between_hosts,
            missing: missing(coupler, number),
        }
    }

    /// What each process of the target has taken. None if one on another host has not said.
    fn taken_by_all(&self, coupler: &Coupler, number: usize) -> Option<Vec<(u32, TakenVersions)>> {
        let terms = &coupler.coupling().connections()[number];
        let place = coupler.coupling().place_into(number);
        let parts = self.keeper.memory_of(&terms.to).into_iter();
        let here = parts.filter_map(|(rank, memory)| Some((rank, self.taken(memory, place)?)));
        let elsewhere = match coupler.connections()[number].state {
            ConnectionState::Ready => coupler.moved(number as u32)?,
            // Nobody can have taken anything.
            ConnectionState::Waiting | ConnectionState::Failed(_) => Vec::new(),
        };
        Some(here.chain(elsewhere).collect())
    }

    /// Says who is why a connection has moved nothing: who has exported nothing, or else who has read nothing.
    fn unmoved(
        &self,
        coupler: &Coupler,
        terms: &ConnectionTerms,
        taken: &[(u32, TakenVersions)],
    ) -> String {
        let exported = self.exported_by_all(coupler, &terms.from);
        let silent = exported.as_ref().map(|exported| {
            let silent = exported.iter().filter(|(_, version)| *version == 0);
            silent.map(|(rank, _)| *rank).collect::<Vec<u32>>()
        });
        if let (Some(exported), Some(silent)) = (&exported, silent)
            && !silent.is_empty()
        {
            let who = some_of(&terms.from.program, &silent, exported.len());
            return format!("{who} exported no version");
        }
        let without = taken.iter().filter(|(_, taken)| taken.version == 0);
        let without: Vec<u32> = without.map(|(rank, _)| *rank).collect();
        let who = some_of(&terms.to.program, &without, taken.len());
        let last = exported.and_then(|exported| exported.iter().map(|(_, version)| *version).min());
        let from = &terms.from.program;
        match last {
            None => format!("{who} never read it"),
            Some(1) => format!("{from} exported version 1, {who} never read it"),
            Some(last) => format!("{from} exported versions 1 to {last}, {who} never read any"),
        }
    }

    /// The last version that each process has exported. None if that isn't known of one on another host.
    fn exported_by_all(&self, coupler: &Coupler, array: &Variable) -> Option<Vec<(u32, u64)>> {
        let parts = self.keeper.memory_of(array).into_iter();
        let here = parts.filter_map(|(rank, memory)| {
            let kept = self.memories.get(&memory)?;
            Some((rank, kept.mapped.exported()))
        });
        Some(here.chain(coupler.exported(array)?).collect())
    }

    /// What a process that is gone has taken over the connections that end in its arrays.
    pub(super) fn moved_to(&self, gone: &GoneMember) -> Vec<KeeperReport> {
        let connections = self.keeper.coupling().connections().iter().enumerate();
        let into = connections.filter(|(_, terms)| terms.to.program == gone.program);
        let moved = into.filter_map(|(number, terms)| {
            let parts = self.keeper.memory_of(&terms.to).into_iter();
            let (_, memory) = parts.into_iter().find(|(rank, _)| *rank == gone.rank)?;
            Some(KeeperReport::Moved {
                connection: number as u32,
                rank: gone.rank,
                taken: self.taken(memory, self.keeper.coupling().place_into(number))?,
            })
        });
        moved.collect()
    }

    fn taken(&self, memory: MemoryId, place: usize) -> Option<TakenVersions> {
        let (version, bytes, nanoseconds) = self.memories.get(&memory)?.mapped.taken(place as u16);
        Some(TakenVersions {
            version,
            bytes,
            nanoseconds,
        })
    }
}

/// These processes of a program, or the program if they are all.
fn some_of(program: &str, ranks: &[u32], size: usize) -> String {
    match ranks.len() == size {
        true => program.to_owned(),
        false => ranks_of(program, ranks),
    }
}
