//! What a gateway can hold with the descriptors that its process may have.

use exoskel_node::gateway::GatewayLimits;

use super::service::HANDSHAKES_MAX;
use crate::reception::{SHARE_OF_WAITING, waiting_max};

/// Two connections, and two pipes of two ends.
const DESCRIPTORS_OF_TUNNEL: u64 = 6;

/// The connection over which a node is called.
const DESCRIPTORS_OF_REGISTRATION: u64 = 1;

/// Descriptors for everything else, but connections that wait for a handshake.
const DESCRIPTORS_BESIDE: u64 = 64 + HANDSHAKES_MAX as u64;

/// Into so many parts the descriptors are divided, and registrations get no more than one of them.
const SHARE_OF_REGISTRATIONS: u64 = 4;

/// Into so many parts the tunnels are divided, and the registrations; no node gets more than one of them.
const SHARE_OF_NODE: usize = 4;

/// With fewer descriptors there can be no tunnel.
pub(super) const DESCRIPTORS_MIN: u64 =
    (DESCRIPTORS_BESIDE + DESCRIPTORS_OF_REGISTRATION + DESCRIPTORS_OF_TUNNEL) * SHARE_OF_WAITING
        / (SHARE_OF_WAITING - 1)
        + 1;

/// These limits, or lower ones, so that all tunnels and registrations together need no more than so many descriptors. None where there is
/// no room for a tunnel.
pub(super) fn affordable(wanted: GatewayLimits, descriptors: u64) -> Option<GatewayLimits> {
    if descriptors < DESCRIPTORS_MIN {
        return None;
    }
    let whole = descriptors - DESCRIPTORS_BESIDE - waiting_max(descriptors);
    let registrations = whole / SHARE_OF_REGISTRATIONS / DESCRIPTORS_OF_REGISTRATION;
    let registrations_max = wanted.registrations_max.min(count(registrations));
    let left = whole - registrations_max as u64 * DESCRIPTORS_OF_REGISTRATION;
    let tunnels_max = wanted.tunnels_max.min(count(left / DESCRIPTORS_OF_TUNNEL));
    let tunnels_of_node = tunnels_max.div_ceil(SHARE_OF_NODE);
    Some(GatewayLimits {
        tunnels_max,
        tunnels_of_node_max: wanted.tunnels_of_node_max.min(tunnels_of_node),
        registrations_max,
        registrations_of_node_max: wanted
            .registrations_of_node_max
            .min(registrations_max.div_ceil(SHARE_OF_NODE)),
    })
}

fn count(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    #[test]
    fn tunnels_and_registrations_together_fit() {
        let wanted = GatewayLimits::default();
        for descriptors in [DESCRIPTORS_MIN, 256, 1024, 4096, 20_000, 1 << 20, u64::MAX] {
            let limits = affordable(wanted, descriptors).unwrap();
            let needed = limits.tunnels_max as u64 * DESCRIPTORS_OF_TUNNEL
                + limits.registrations_max as u64 * DESCRIPTORS_OF_REGISTRATION
                + DESCRIPTORS_BESIDE
                + waiting_max(descriptors);
            assert!(
                needed <= descriptors,
                "{limits:?} need {needed} of {descriptors}"
            );
            assert!(limits.tunnels_max > 0 && limits.registrations_max > 0);
        }
        let all = affordable(wanted, 1 << 20).unwrap();
        assert_eq!(
            (all.tunnels_max, all.registrations_max),
            (wanted.tunnels_max, wanted.registrations_max)
        );
        assert_eq!(affordable(wanted, DESCRIPTORS_MIN - 1), None);
    }
}
