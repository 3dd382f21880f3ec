//! What is lost, and what ends in good order.

use super::*;

impl World {
    /// Nothing goes between two hosts any more. What was on its way is lost.
    pub(super) fn cut_way(&mut self, one: usize, other: usize) {
        self.cut.extend([(one, other), (other, one)]);
        for (from, to) in [(one, other), (other, one)] {
            let sender = from as KeeperId;
            let host = &mut self.hosts[to];
            host.wants.retain(|wanted| wanted.keeper != sender);
            host.pieces.retain(|(head, _)| head.keeper != sender);
            host.told.retain(|(keeper, _)| *keeper != sender);
            host.indices.retain(|said| said.keeper != sender);
            let carried = self.hosts[from].carried.remove(&(to as KeeperId));
            for (head, _) in carried.unwrap_or_default() {
                self.hosts[from].keeper.not_departed(head.pair);
            }
            self.act(from);
        }
    }

    pub(super) fn can_reach(&self, from: usize, to: usize) -> bool {
        !self.hosts[to].is_lost && !self.cut.contains(&(from, to))
    }

    /// A host learns that the coupler or a keeper is gone.
    pub(super) fn notice(&mut self, number: usize) {
        let host = &mut self.hosts[number];
        match host.notices.pop_front().unwrap() {
            None => {
                host.knows_of_coupler = true;
                match host.given_up.clone() {
                    Some(given_up) => host.keeper.given_up(given_up),
                    None => host.keeper.coupler_lost("no answer"),
                }
            }
            Some(keeper) => host.keeper.keeper_unreachable(keeper, "no answer"),
        }
        self.act(number);
    }

    pub(super) fn lose_way(&mut self, one: usize, other: usize) {
        let (first, second) = (&self.hosts[one], &self.hosts[other]);
        if one == other || first.is_lost || second.is_lost || !self.can_reach(one, other) {
            return;
        }
        self.has_lost_host = true;
        self.cut_way(one, other);
        for (host, lost) in [(one, other), (other, one)] {
            let is_coupler = lost == 0;
            let lost = (!is_coupler).then_some(lost as KeeperId);
            if host > 0 {
                self.hosts[host].notices.push_back(lost);
            }
        }
        if one == 0 {
            self.has_lost_more_than_ways = true;
            // The coupler sees it itself.
            self.hosts[other].reports.clear();
            self.coupler.keeper_lost(other as KeeperId, "no answer");
            self.give_orders();
        }
    }

    pub(super) fn lose_host(&mut self, number: usize, is_seen: bool) {
        let host = &mut self.hosts[number];
        host.is_lost = true;
        host.orders.clear();
        host.reports.clear();
        host.wants.clear();
        host.pieces.clear();
        host.carried.clear();
        host.departed.clear();
        host.notices.clear();
        host.told.clear();
        host.indices.clear();
        for process in &mut self.processes {
            if process.keeper == number {
                process.phase = Phase::Ended;
                process.says.clear();
                process.hears.clear();
                let lost = || "its keeper was lost".to_owned();
                if is_seen {
                    process.error.get_or_insert_with(lost);
                }
            }
        }
        for other in 0..self.hosts.len() {
            let carried = self.hosts[other].carried.remove(&(number as KeeperId));
            for (head, _) in carried.unwrap_or_default() {
                self.hosts[other].keeper.not_departed(head.pair);
            }
            if other != number {
                self.act(other);
            }
        }
        let is_coupler = number == 0;
        for host in self.hosts.iter_mut().filter(|host| !host.is_lost) {
            let lost = (!is_coupler).then_some(number as KeeperId);
            host.notices.push_back(lost);
            if is_coupler {
                // What was on its way may have come, or not.
                let left = self.draws.below(host.orders.len() + 1);
                host.orders.truncate(left);
            }
        }
        if is_coupler {
            self.is_coupler_lost = true;
        } else if is_seen && !self.is_coupler_lost {
            self.coupler.keeper_lost(number as KeeperId, "no answer");
            self.give_orders();
        }
    }

    /// Has a keeper end in good order, if all of its processes have left. What it still had is lost then.
    pub(super) fn end_some_host(&mut self) {
        let number = self.draws.below(self.hosts.len());
        let mut its = self.processes.iter().filter(|one| one.keeper == number);
        let have_left = its.all(|one| one.phase == Phase::Ended && one.says.is_empty());
        let host = &mut self.hosts[number];
        let is_over = host.is_lost || host.given_up.is_some() || host.knows_of_coupler;
        if number == 0 || is_over || !have_left {
            return;
        }
        let mut connections = self.coupler.connections().iter();
        let is_ready = connections.all(|one| one.is_settled());
        let owes = host.keeper.needed_count() > 0 || !is_ready;
        // What is on its way may come behind the word that its keeper is gone.
        let mut others = self.hosts.iter().flat_map(|other| &other.pieces);
        let owes = owes || others.any(|(head, _)| head.keeper == number as KeeperId);
        if owes && !self.draws.one_in(8) {
            return;
        }
        self.has_left_owing |= owes;
        let reports = std::mem::take(&mut self.hosts[number].reports);
        self.lose_host(number, false);
        let host = &mut self.hosts[number];
        (host.reports, host.is_leaving) = (reports, true);
    }

    /// Loses a process, a keeper with its processes, or the way between two of them.
    pub(super) fn fault(&mut self) {
        if self.loses_ways_only && self.hosts.len() > 2 {
            let one = 1 + self.draws.below(self.hosts.len() - 1);
            let other = 1 + self.draws.below(self.hosts.len() - 1);
            return self.lose_way(one.min(other), one.max(other));
        }
        if self.draws.one_in(3) && self.hosts.len() > 1 {
            let number = self.draws.below(self.hosts.len());
            if !self.hosts[number].is_lost {
                self.has_lost_host = true;
                self.has_lost_more_than_ways = true;
                self.lose_host(number, true);
            }
            return;
        }
        if self.draws.one_in(4) && self.hosts.len() > 1 {
            let one = self.draws.below(self.hosts.len());
            let other = self.draws.below(self.hosts.len());
            self.lose_way(one.min(other), one.max(other));
            return;
        }
        let number = self.draws.below(self.processes.len());
        let process = &mut self.processes[number];
        // Those that haven't come are waited for, by those who started them.
        if process.phase == Phase::Ended || process.phase == Phase::Attaching {
            return;
        }
        self.has_lost_more_than_ways = true;
        process.phase = Phase::Ended;
        process.error = Some("killed".to_owned());
        process.says.clear();
        process.hears.clear();
        let (host, id) = (process.keeper, process.id);
        self.hosts[host].keeper.lost(id, "killed");
        self.act(host);
    }
}
