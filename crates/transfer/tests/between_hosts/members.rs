//! What processes hear, wait for and do: `exoskel_member::SharedArray` in small.

use super::*;

impl World {
    pub(super) fn hear(&mut self, number: usize, message: KeeperMessage) {
        let layouts = &self.layouts;
        let process = &mut self.processes[number];
        match message {
            KeeperMessage::Attached => {
                for name in ["in", "out"] {
                    let layout = &layouts[&format!("{}.{name}", process.program)];
                    let rank = process.rank;
                    let own = layout.index_sets().map(|(axis, sets)| {
                        let set = sets.set(rank).unwrap().clone();
                        (axis, BTreeMap::from([(rank, set)]))
                    });
                    for part in IndexPart::of(&own.collect()) {
                        let name = name.to_owned();
                        let said = MemberMessage::Indices { name, part };
                        process.says.push_back(said);
                    }
                    process.says.push_back(MemberMessage::Array {
                        name: name.to_owned(),
                        layout: LayoutDescription::of(layout),
                    });
                }
            }
            KeeperMessage::Refused { reason } => {
                assert!(self.hosts[process.keeper].knows_of_coupler, "{reason}");
                process.phase = Phase::Ended;
                process.error = Some(reason.clone());
                let error = Some(reason);
                process.says.push_back(MemberMessage::Leave { error });
            }
            KeeperMessage::Memory { .. } => {
                if process.memories.len() == 2 && process.phase == Phase::Attaching {
                    process.phase = Phase::Writing;
                }
            }
            KeeperMessage::Indices {
                connection,
                own,
                part,
            } => {
                let place = (connection, own == ArrayEnd::Source);
                let heard = process.indices.entry(place).or_default();
                heard.take(&part).unwrap();
            }
            KeeperMessage::Partner {
                connection,
                own,
                rank,
                ..
            } => {
                let place = (connection, own == ArrayEnd::Source);
                let known = process.connected.entry(place).or_insert_with(|| Connected {
                    here: Vec::new(),
                    elsewhere: vec![u32::MAX],
                });
                known.here.push(rank);
            }
            KeeperMessage::Connected {
                connection, own, ..
            } => {
                let terms = &self.coupling.connections()[connection as usize];
                let (source, target) = (
                    &layouts[&terms.from.to_string()],
                    &layouts[&terms.to.to_string()],
                );
                let mapping = terms.mapping(source, target).unwrap();
                let side = match own {
                    ArrayEnd::Source => PlanSide::Source,
                    ArrayEnd::Target => PlanSide::Target,
                };
                let plan = RedistributionPlan::new(source, target, &mapping, side, process.rank);
                let place = (connection, own == ArrayEnd::Source);
                let heard = process.indices.remove(&place).unwrap_or_default();
                let share = AxisShare::WHOLE;
                let met = mapping.met_sets(source, target, side, process.rank, share);
                let met = met.into_iter().filter(|(_, sets)| !sets.is_empty());
                assert_eq!(heard.sets(), Ok(met.collect::<SetsOfAxes>()));
                let known = process.connected.entry(place).or_insert_with(|| Connected {
                    here: Vec::new(),
                    elsewhere: Vec::new(),
                });
                let ranks = plan.messages().map(|message| message.rank());
                known.elsewhere = ranks.filter(|rank| !known.here.contains(rank)).collect();
            }
            KeeperMessage::Forgone { .. } => {
                assert_eq!(process.phase, Phase::Forgoing);
                process.phase = Phase::WritingOn;
                let host = &mut self.hosts[process.keeper];
                let part = host.parts.get_mut(&process.memories["in"]).unwrap();
                part.is_open = false;
            }
            KeeperMessage::Failed { connection, .. } => {
                process.failed.insert(connection);
            }
            KeeperMessage::Came {
                connection,
                rank,
                version,
            } => {
                process.came.insert((connection, rank), version);
            }
            KeeperMessage::Gone(gone) => {
                let place = (gone.program.clone(), gone.rank);
                process.gone.insert(place, gone);
            }
        }
    }

    /// The connections at one end of a process's arrays, by their numbers.
    pub(super) fn connections(&self, process: &Process, is_source: bool) -> Vec<u32> {
        let connections = self.coupling.connections().iter().enumerate();
        let found = connections.filter(|(_, terms)| {
            let end = if is_source { &terms.from } else { &terms.to };
            end.program == process.program
        });
        found.map(|(number, _)| number as u32).collect()
    }

    pub(super) fn waits_to_be_connected(&self, process: &Process) -> bool {
        [true, false].into_iter().any(|is_source| {
            let connections = self.connections(process, is_source).into_iter();
            connections.into_iter().any(|number| {
                let known = process.connected.get(&(number, is_source));
                !process.failed.contains(&number)
                    && known.is_none_or(|known| known.elsewhere == [u32::MAX])
            })
        })
    }

    /// The one that ends there, if there is one.
    pub(super) fn connection_into(&self, process: &Process) -> Option<u32> {
        self.connections(process, false).first().copied()
    }

    pub(super) fn part(&self, process: &Process, name: &str) -> &Part {
        &self.hosts[process.keeper].parts[&process.memories[name]]
    }

    /// The part of a process of this host.
    pub(super) fn part_of(&self, program: &str, rank: u32, name: &str) -> &Part {
        let mut processes = self.processes.iter();
        let process = processes.find(|one| one.program == program && one.rank == rank);
        self.part(process.unwrap(), name)
    }

    /// What a process does next; none if it waits.
    pub(super) fn next_of(&self, number: usize) -> Option<Result<(), String>> {
        let process = &self.processes[number];
        match process.phase {
            Phase::Attaching | Phase::Forgoing | Phase::Ended => None,
            Phase::Writing => self.can_write(process),
            // Nobody waits for who reads no more, and goes on.
            Phase::WritingOn => self.can_write(process).or(Some(Ok(()))),
            Phase::Reading => self.can_read(process),
        }
    }

    pub(super) fn can_write(&self, process: &Process) -> Option<Result<(), String>> {
        for connection in self.connections(process, true) {
            match self.has_been_taken(process, connection) {
                Some(Ok(())) => {}
                other => return other,
            }
        }
        Some(Ok(()))
    }

    pub(super) fn has_been_taken(
        &self,
        process: &Process,
        connection: u32,
    ) -> Option<Result<(), String>> {
        let terms = &self.coupling.connections()[connection as usize];
        let last = last_taken(process.written, terms.every);
        if last == 0 {
            return Some(Ok(()));
        }
        if process.failed.contains(&connection) {
            return Some(Err("failed".to_owned()));
        }
        let known = process.connected.get(&(connection, true))?;
        if known.elsewhere == [u32::MAX] {
            return None;
        }
        let other = &terms.to.program;
        let gone = |rank: u32| process.gone.get(&(other.clone(), rank));
        let mut waits = false;
        for rank in &known.here {
            let taken = self.part_of(other, *rank, "in").taken.get(&0).copied();
            if taken.unwrap_or(0) < last {
                match gone(*rank) {
                    Some(gone) if gone.loss.is_some() => return Some(Err("lost".to_owned())),
                    Some(_) => {}
                    None => waits = true,
                }
            }
        }
        let place = self.coupling.place_from(connection as usize) as u16;
        let released = self.part(process, "out").released.get(&place).copied();
        if !known.elsewhere.is_empty() && released.unwrap_or(0) < last {
            let mut elsewhere = known.elsewhere.iter();
            if elsewhere.any(|rank| gone(*rank).is_some_and(|gone| gone.loss.is_some())) {
                return Some(Err("lost".to_owned()));
            }
            waits = true;
        }
        (!waits).then_some(Ok(()))
    }

    pub(super) fn can_read(&self, process: &Process) -> Option<Result<(), String>> {
        let Some(connection) = self.connection_into(process) else {
            return Some(Ok(()));
        };
        if process.failed.contains(&connection) {
            return Some(Err("failed".to_owned()));
        }
        let known = process.connected.get(&(connection, false))?;
        if known.elsewhere == [u32::MAX] {
            return None;
        }
        let terms = &self.coupling.connections()[connection as usize];
        let wanted = source_version(process.read + 1, terms.every);
        if !known.elsewhere.is_empty() && process.wanted < wanted {
            // It asks first.
            return Some(Ok(()));
        }
        let other = &terms.from.program;
        let gone = |rank: u32| process.gone.get(&(other.clone(), rank));
        let mut waits = false;
        for rank in &known.here {
            if self.part_of(other, *rank, "out").exported < wanted {
                waits = true;
                if gone(*rank).is_some() {
                    return Some(Err("gone".to_owned()));
                }
            }
        }
        let arrived = self.part(process, "in").arrived.get(&0).copied();
        if !known.elsewhere.is_empty() && arrived.unwrap_or(0) < wanted {
            waits = true;
            let left = |gone: &GoneMember| gone.exported.get("out").copied().unwrap_or(0);
            let is_missing = |rank: &&u32| process.came.get(&(connection, **rank)) != Some(&wanted);
            let mut elsewhere = known.elsewhere.iter().filter(is_missing);
            if elsewhere.any(|rank| gone(*rank).is_some_and(|gone| left(gone) < wanted)) {
                return Some(Err("gone".to_owned()));
            }
            let mut elsewhere = known.elsewhere.iter().filter(is_missing);
            if elsewhere.any(|rank| gone(*rank).is_some_and(|gone| gone.lost_since.is_some())) {
                return Some(Err("lost".to_owned()));
            }
        }
        (!waits).then_some(Ok(()))
    }

    pub(super) fn go_on(&mut self, number: usize) {
        let next = self.next_of(number).unwrap();
        let into = self.connection_into(&self.processes[number]);
        let has_elsewhere = into.is_some_and(|connection| {
            let known = self.processes[number].connected.get(&(connection, false));
            known.is_some_and(|known| !known.elsewhere.is_empty())
        });
        let every = into.map_or(1, |number| {
            self.coupling.connections()[number as usize].every
        });
        let leaves = self.has_leavers && self.draws.one_in(10);
        let is_held_up = self.can_write(&self.processes[number]).is_none();
        self.check_lost_takers(number);
        let process = &mut self.processes[number];
        let host = &mut self.hosts[process.keeper];
        if leaves && process.phase == Phase::Writing {
            process.phase = Phase::Ended;
            process.says.push_back(MemberMessage::Leave { error: None });
            return;
        }
        if let Err(error) = next {
            process.error.get_or_insert_with(|| error.clone());
            if error == "gone" && has_elsewhere && self.draws.one_in(2) {
                // It goes on without.
                process.has_forgone = true;
                process.phase = Phase::Forgoing;
                process.says.push_back(MemberMessage::Forgo {
                    connection: into.unwrap(),
                    version: process.wanted,
                });
                return;
            }
            process.phase = Phase::Ended;
            // That others have ended is no error of one's own.
            let error = Some(error).filter(|error| error != "gone");
            process.says.push_back(MemberMessage::Leave { error });
            return;
        }
        match process.phase {
            Phase::WritingOn if is_held_up || process.written > VERSIONS + 1 => {
                process.phase = Phase::Ended;
                process.says.push_back(MemberMessage::Leave { error: None });
            }
            Phase::Writing | Phase::WritingOn => {
                let part = host.parts.get_mut(&process.memories["out"]).unwrap();
                process.written += 1;
                part.contents = process.written;
                part.exported = process.written;
                process.says.push_back(MemberMessage::Exported {
                    name: "out".to_owned(),
                    version: process.written,
                });
                if process.phase == Phase::Writing {
                    process.phase = Phase::Reading;
                }
            }
            Phase::Reading => {
                let part = host.parts.get_mut(&process.memories["in"]).unwrap();
                let wanted = source_version(process.read + 1, every);
                if has_elsewhere && process.wanted < wanted {
                    process.wanted = wanted;
                    part.is_open = true;
                    process.says.push_back(MemberMessage::Want {
                        connection: into.unwrap(),
                        version: wanted,
                    });
                    return;
                }
                part.is_open = false;
                part.taken.insert(0, wanted);
                process.read += 1;
                process.phase = Phase::Writing;
                let is_done = process.read == VERSIONS
                    || (every > 1 && source_version(process.read + 1, every) > VERSIONS);
                if is_done {
                    process.phase = Phase::Ended;
                    process.says.push_back(MemberMessage::Leave { error: None });
                }
            }
            Phase::Attaching | Phase::Forgoing | Phase::Ended => {}
        }
    }

    /// Nobody writes over what a lost process should have taken, and hasn't asked for.
    pub(super) fn check_lost_takers(&self, number: usize) {
        let process = &self.processes[number];
        let writes = [Phase::Writing, Phase::WritingOn].contains(&process.phase);
        if !writes || self.can_write(process) != Some(Ok(())) {
            return;
        }
        for connection in self.connections(process, true) {
            let terms = &self.coupling.connections()[connection as usize];
            let last = last_taken(process.written, terms.every);
            let known = process.connected.get(&(connection, true));
            for rank in known.iter().flat_map(|known| &known.elsewhere) {
                let mut processes = self.processes.iter();
                let taker =
                    processes.find(|one| one.program == terms.to.program && one.rank == *rank);
                let Some(taker) = taker.filter(|one| one.error.as_deref() == Some("killed")) else {
                    continue;
                };
                assert!(
                    last <= taker.wanted,
                    "version {last} was lost, and is written over"
                );
            }
        }
    }

    /// How many versions a process should have read when those that give have gone in good order.
    pub(super) fn versions_for(&self, process: &Process) -> Option<u64> {
        let connection = self.connection_into(process)?;
        let terms = &self.coupling.connections()[connection as usize];
        let known = process.connected.get(&(connection, false))?;
        let ranks = known.here.iter().chain(&known.elsewhere);
        let exported = ranks.map(|rank| self.part_of(&terms.from.program, *rank, "out").exported);
        let last = last_taken(exported.min()?, terms.every);
        Some(
            last.checked_sub(1)
                .map_or(0, |before| before / terms.every + 1),
        )
    }
}
