//! Nodes that are dialled in vain.

use super::*;

/// Two startpoints of one process say different addresses, and the first one asked for leads nowhere.
#[test]
fn a_startpoint_is_tried_at_its_own_address() {
    let (mut site, startpoint) = opener();
    let at = |hint: &str| {
        startpoint
            .clone()
            .with_hints(vec![hint.to_owned()])
            .unwrap()
    };
    let first = site.machine.bind(at("tcp://nowhere:1"));
    let contents = MessageContents::default;
    site.machine.request(first, "note", contents()).unwrap();
    let wants = site.machine.take_wants(Duration::ZERO);
    let second = site.machine.bind(at("tcp://ocean:2"));
    site.machine.request(second, "note", contents()).unwrap();
    assert!(
        site.machine.take_wants(Duration::ZERO).is_empty(),
        "the process is being dialled"
    );
    let mut attempts = FailedAttempts::default();
    attempts.add("tcp://nowhere:1", "refused".to_owned(), Hindrance::Way);
    let lost = site
        .machine
        .unreachable(&wants[0], &attempts, Duration::ZERO);
    let [Happening::Answered(..), Happening::Audit(line)] = &lost[..] else {
        panic!("{lost:?}");
    };
    assert!(line.contains("tcp://nowhere:1: refused"), "{line}");
    let wants = site.machine.take_wants(Duration::ZERO);
    assert_eq!(wants[0].hints, ["tcp://ocean:2"]);
}

#[test]
fn a_node_without_an_address_is_told_as_that() {
    let (mut site, startpoint) = opener();
    let startpoint = startpoint.with_hints(Vec::new()).unwrap();
    let bound = site.machine.bind(startpoint);
    let contents = MessageContents::default();
    site.machine.request(bound, "note", contents).unwrap();
    let wants = site.machine.take_wants(Duration::ZERO);
    let attempts = FailedAttempts::default();
    let lost = site
        .machine
        .unreachable(&wants[0], &attempts, Duration::ZERO);
    let [Happening::Answered(_, answer), Happening::Audit(_)] = &lost[..] else {
        panic!("{lost:?}");
    };
    let error = RequestAnswer::Lost(LinkError::NoAddress(wants[0].peer.node.clone()));
    assert_eq!(*answer, error);
}
