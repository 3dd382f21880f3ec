//! How a slot meets a manager that listens: it knocks until it is let in. One slot of a worker knocks at a time; the next one does when
//! it has its session. So a manager that has what it needs has one connection of each worker, which waits until it is called.

use std::cell::RefCell;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Instant;

use exoskel_identity::IdentityError;
use exoskel_node::knocking::{Knocking, PAUSE_MAX};

use crate::address::Address;
use crate::establish::{EstablishError, Established, NodeConfig, knock};
use crate::rendezvous::MeetError;
use crate::signer::SlotEnd;
use crate::sources::{CurrentConfig, NodeConfigRenewal, RENEWAL_TIME};
use crate::tls::TlsError;

/// Where a manager listens, and who it is.
pub struct ManagerPlace {
    /// Its address.
    pub address: Address,
    /// The name in its certificate. Without one, any manager of the authority that the policy allows is accepted.
    pub name: Option<String>,
    /// Who says whose turn it is among the worker's slots; nobody for a slot that is alone.
    pub turns: Option<SlotEnd>,
    /// Whether a manager of another name is an error that ends the slot. A slot of a worker that has served one before goes on: who
    /// is there may be somebody else for now.
    pub ends_at_wrong_name: bool,
}

impl ManagerPlace {
    /// Knocks until there is a session.
    pub(crate) async fn meet(
        self,
        config: &RefCell<CurrentConfig>,
        audit: &dyn Fn(String),
    ) -> Result<Established, MeetError> {
        if let Some(turns) = &self.turns {
            turns.turn().await.map_err(MeetError::Signer)?;
        }
        let address = &self.address;
        let mut knocking = Knocking::new(RandomState::new().build_hasher().finish());
        let began = Instant::now();
        loop {
            // Before the files are read: what changes meanwhile is noticed.
            let renewal = config.borrow().renewal();
            let (terms, told) = config.borrow_mut().read();
            told.into_iter().for_each(audit);
            knocking.begin(began.elapsed());
            let waiting = || {
                audit(format!(
                    "the manager at {address} has the slots that it needs; waits to be called"
                ));
            };
            let met = tokio::select! {
                met = self.reach(&terms, waiting) => met,
                // Whoever calls now would be judged by what was in force when the wait began.
                () = changed(renewal) => continue,
            };
            let error = match met {
                Ok(established) => return Ok(established),
                Err(error) => error,
            };
            if self.ends_at_wrong_name && is_wrong_name(&error) {
                // The others would find the same. Their turn comes when this process has said so and ended.
                return Err(error);
            }
            if let Some(reason) = knocking.failed(began.elapsed(), error.to_string()) {
                audit(format!(
                    "no session with the manager at {address}: {reason}; asks again, at least every {} seconds",
                    PAUSE_MAX.as_secs()
                ));
            }
            tokio::time::sleep(knocking.next_at().saturating_sub(began.elapsed())).await;
        }
    }

    async fn reach(
        &self,
        terms: &NodeConfig,
        waiting: impl FnOnce(),
    ) -> Result<Established, MeetError> {
        let connecting = tokio::time::timeout(terms.handshake_time, self.address.connect()).await;
        let socket = connecting
            .map_err(|_| MeetError::NoConnection(terms.handshake_time))?
            .map_err(MeetError::Connect)?;
        Ok(knock(socket, terms, self.name.clone(), waiting).await?)
    }
}

/// Waits until the node's files have changed and can be read.
async fn changed(mut renewal: NodeConfigRenewal) {
    loop {
        tokio::time::sleep(RENEWAL_TIME).await;
        if let Some(Ok(_)) = renewal.renew() {
            return;
        }
    }
}

/// Whether we reached a manager of our authority, and not the one that we meant.
fn is_wrong_name(error: &MeetError) -> bool {
    let MeetError::Establish(EstablishError::Tls(TlsError::Peer(error))) = error else {
        return false;
    };
    matches!(error, IdentityError::WrongName { .. })
}
