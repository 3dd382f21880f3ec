//! What the code of those with whom a node has sessions may use on this host.

use exoskel_identity::authorization::SandboxUse;

use super::{LinkNode, lock};

impl LinkNode {
    /// What the policy's table lets code use, whosever that is; nothing, where there is no table.
    #[must_use]
    pub fn sandbox_table(&self) -> Option<SandboxUse> {
        let policy = lock(&self.shared.terms).policy.clone();
        policy.authorization().sandbox_table().cloned()
    }

    /// What the code of somebody with whom there is a session may use on this host, and why, by the policy as it is now; inside, nothing: all that
    /// the account may. Nothing at all when there is no session with anybody of this name.
    ///
    /// Who has one session as somebody who is confined is confined.
    #[must_use]
    pub fn sandbox_of(&self, name: &str) -> Option<Option<(SandboxUse, String)>> {
        let policy = lock(&self.shared.terms).policy.clone();
        let sessions = lock(&self.shared.sessions);
        let peers = sessions.values().map(|live| &live.record.peer);
        let its = peers.filter(|peer| peer.name() == name);
        let found = its.map(|peer| {
            let confined = policy.authorization().sandbox_of(peer);
            confined.map(|(allowed, why)| (allowed.clone(), why))
        });
        found.max_by_key(Option::is_some)
    }
}
