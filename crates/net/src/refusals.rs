//! Handshakes that came to nothing, told in few lines however many strangers knock.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::reception::Host;

/// How long refusals are counted before they are told in one line.
pub(crate) const COUNTING_TIME: Duration = Duration::from_secs(60);

/// Refusals of one host that have a line of their own while others are counted: enough to see what is wrong with a manager.
const LINES_OF_HOST_MAX: u32 = 3;

/// Hosts that are told apart while refusals are counted. All others are counted together.
const HOSTS_MAX: usize = 64;

/// The refusals at one listening socket since they were last told.
#[derive(Default)]
pub(crate) struct Refusals {
    hosts: BTreeMap<Host, OfHost>,
    /// Of hosts for which there was no room.
    others: u64,
}

#[derive(Default)]
struct OfHost {
    lines: u32,
    counted: u64,
    last: String,
}

impl Refusals {
    /// Takes in that a connection from there, at this address, came to nothing; the line to write, if it has one of its own.
    pub(crate) fn note(&mut self, host: Host, address: &str, reason: &str) -> Option<String> {
        if self.hosts.len() >= HOSTS_MAX && !self.hosts.contains_key(&host) {
            self.others += 1;
            return None;
        }
        let of_host = self.hosts.entry(host).or_default();
        if of_host.lines < LINES_OF_HOST_MAX {
            of_host.lines += 1;
            return Some(format!("no session with {address}: {reason}"));
        }
        of_host.counted += 1;
        reason.clone_into(&mut of_host.last);
        None
    }

    /// The lines for what was counted; counting begins anew.
    pub(crate) fn tell(&mut self) -> Vec<String> {
        let Self { hosts, others } = std::mem::take(self);
        let mut lines = Vec::new();
        for (host, OfHost { counted, last, .. }) in hosts {
            if counted > 0 {
                let from = host.map_or_else(|| "this machine".to_owned(), |host| host.to_string());
                lines.push(format!(
                    "no session with {counted} more from {from}; the last one: {last}"
                ));
            }
        }
        if others > 0 {
            lines.push(format!("no session with {others} more from other hosts"));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    #[test]
    fn many_refusals_of_a_host_are_few_lines() {
        let mut refusals = Refusals::default();
        let host = Some(IpAddr::from([10, 0, 0, 3]));
        let lines: Vec<String> = (0..20)
            .filter_map(|port| {
                let address = format!("10.0.0.3:{port}");
                refusals.note(host, &address, "it said nothing")
            })
            .collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], "no session with 10.0.0.3:0: it said nothing");
        assert_eq!(
            refusals.tell(),
            ["no session with 17 more from 10.0.0.3; the last one: it said nothing"]
        );
        assert!(refusals.tell().is_empty());
        assert!(refusals.note(host, "10.0.0.3:9", "no").is_some());
    }

    #[test]
    fn many_hosts_are_few_lines_and_little_memory() {
        let mut refusals = Refusals::default();
        let mut lines = 0;
        for round in 0..5 {
            for number in 0..1000_u32 {
                let host = Some(IpAddr::from(number.to_be_bytes()));
                let line = refusals.note(host, "there", &format!("round {round}"));
                lines += usize::from(line.is_some());
            }
        }
        lines += refusals.tell().len();
        assert!(lines <= HOSTS_MAX * 4 + 1, "{lines}");
    }
}
