//! Lines that wait to be written down: about who was let in, and who was not. A peer that causes many loses its own.

use std::collections::BTreeMap;

use exoskel_identity::Identity;

use super::{LinkNode, LinkShared, lock};

/// Lines that wait to be written down, at most.
const AUDIT_LINES_MAX: usize = 1024;

/// Peers that are told apart at once, at most.
const SOURCES_MAX: usize = 2 * AUDIT_LINES_MAX;

/// Whose doing a line tells: a peer's, or nobody's in particular.
type AuditSource = Option<Identity>;

/// Lines that wait to be written down.
#[derive(Default)]
pub(super) struct AuditLines {
    lines: Vec<(AuditSource, String)>,
    sources: BTreeMap<AuditSource, SourceLines>,
}

#[derive(Default)]
struct SourceLines {
    kept: usize,
    /// How many there was no room for.
    lost: u64,
}

impl AuditLines {
    /// Takes in a line. If there is no room, the newest one of whoever has the most is lost.
    fn add(&mut self, source: Option<&Identity>, line: String) {
        let source = self.known(source);
        if self.lines.len() >= AUDIT_LINES_MAX {
            let own = self.sources.get(&source).map_or(0, |lines| lines.kept);
            let sources = self.sources.iter();
            let fullest = sources.max_by_key(|(_, lines)| lines.kept);
            let fullest = fullest.filter(|(_, lines)| lines.kept > own + 1);
            let Some(fullest) = fullest.map(|(source, _)| source.clone()) else {
                self.of(source).lost += 1;
                return;
            };
            let newest = self.lines.iter().rposition(|(one, _)| *one == fullest);
            newest.map(|place| self.lines.remove(place));
            let lines = self.of(fullest);
            lines.kept -= 1;
            lines.lost += 1;
        }
        self.of(source.clone()).kept += 1;
        self.lines.push((source, line));
    }

    /// Who is told apart from others. What all others cause is counted together.
    fn known(&self, source: Option<&Identity>) -> AuditSource {
        let source = source.cloned();
        let has_room = self.sources.len() < SOURCES_MAX;
        let is_known = has_room || self.sources.contains_key(&source);
        source.filter(|_| is_known)
    }

    fn of(&mut self, source: AuditSource) -> &mut SourceLines {
        self.sources.entry(source).or_default()
    }

    fn take(&mut self) -> Vec<String> {
        let Self { lines, sources } = std::mem::take(self);
        let mut lines: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
        for (source, SourceLines { lost, .. }) in sources {
            if lost > 0 {
                let about = source.map_or_else(String::new, |peer| format!(" about {peer}"));
                lines.push(format!("{lost} more lines{about} could not be kept"));
            }
        }
        lines
    }
}

impl LinkNode {
    /// Adds a line of the owner's own to those about who was let in.
    pub fn note(&self, line: String) {
        self.shared.note(line);
    }

    /// Lines about who was let in, and who was not.
    #[must_use]
    pub fn take_audit(&self) -> Vec<String> {
        lock(&self.shared.audit).take()
    }
}

impl LinkShared {
    pub(super) fn note(&self, line: String) {
        self.note_by(None, line);
    }

    /// Adds a line that tells what a peer does.
    pub(super) fn note_by(&self, peer: Option<&Identity>, line: String) {
        lock(&self.audit).add(peer, line);
    }
}

#[cfg(test)]
mod tests {
    use exoskel_identity::Role;

    use super::*;

    fn peer(name: &str) -> Identity {
        Identity::new(Role::Peer, name).unwrap()
    }

    #[test]
    fn who_causes_many_lines_loses_no_other_ones() {
        let mut audit = AuditLines::default();
        let (crowd, quiet) = (peer("crowd"), peer("quiet"));
        let flood = 3 * AUDIT_LINES_MAX;
        for number in 0..flood {
            audit.add(Some(&crowd), format!("crowd {number}"));
        }
        audit.add(Some(&quiet), "quiet".to_owned());
        audit.add(None, "own".to_owned());
        audit.add(Some(&crowd), "crowd again".to_owned());
        let lines = audit.take();
        let lost = flood + 1 - (AUDIT_LINES_MAX - 2);
        assert_eq!(lines.len(), AUDIT_LINES_MAX + 1);
        assert_eq!(lines[0], "crowd 0");
        assert_eq!(
            lines[AUDIT_LINES_MAX - 2..AUDIT_LINES_MAX],
            ["quiet", "own"]
        );
        assert_eq!(
            lines[AUDIT_LINES_MAX],
            format!("{lost} more lines about peer crowd could not be kept")
        );
        assert!(audit.take().is_empty());
    }

    /// Aim: as many peers as there are lines have one each, and what more of them costs is one line.
    #[test]
    fn many_peers_share_the_lines() {
        let mut audit = AuditLines::default();
        for number in 0..AUDIT_LINES_MAX {
            audit.add(Some(&peer(&format!("peer{number}"))), "come".to_owned());
        }
        audit.add(Some(&peer("late")), "come".to_owned());
        let lines = audit.take();
        assert_eq!(lines.len(), AUDIT_LINES_MAX + 1);
        assert_eq!(
            lines[AUDIT_LINES_MAX],
            "1 more lines about peer late could not be kept"
        );
    }
}
