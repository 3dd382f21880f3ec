//! Connections that would write the same elements of a target.

use exoskel_redist::{Layout, Selection};

use super::Coupler;

impl Coupler {
    /// Why a connection can't be, if another one writes some of the same elements: nobody could say whose they are. It counts that the other
    /// one is in the file, so both fail, whoever comes first.
    pub(super) fn overlap(&self, number: usize, target: &Layout) -> Option<String> {
        let connections = self.coupling.connections();
        let terms = &connections[number];
        let shape = target.shape();
        let part = |into: Option<&str>| match into {
            Some(text) => Selection::parse(text, &shape).ok(),
            None => Some(Selection::all(&shape)),
        };
        let own = part(terms.into.as_deref())?;
        let others = connections.iter().enumerate();
        let mut others = others.filter(|(other, one)| *other != number && one.to == terms.to);
        others.find_map(|(_, other)| {
            let theirs = part(other.into.as_deref())?;
            own.overlaps(&theirs).then(|| {
                format!(
                    "{terms} writes {own} of {}, {other} writes {theirs}: expected parts that don't overlap, see into",
                    terms.to
                )
            })
        })
    }
}
