//! Serial functions, and the leases by which one slot at a time runs them.

mod situation;

use std::time::Duration;

use exoskel_flow::*;

use self::situation::*;

/// Suspects of a serial stage go before its ordinary items, or its lease would never be free for them.
#[test]
fn suspects_of_a_serial_stage_go_first() {
    let mut scheduler = scheduler(2);
    let stream = open(&mut scheduler, &seq(0), Tickets::Unbounded);
    scheduler.admit(stream, &[1; 1000], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    assert!(
        sent.len() == 2 && sent[0].0 == sent[1].0,
        "one slot has the lease: {sent:?}"
    );
    scheduler.remove_slot(sent[0].0, Departure::Lost, START);
    for expected in [0, 1] {
        let sent = dispatches(&mut scheduler, START);
        assert_eq!(
            sent.iter().map(|sent| (sent.3, sent.4)).collect::<Vec<_>>(),
            [(expected, 1)]
        );
        answer(&mut scheduler, sent[0].0, sent[0].1, expected, 1, START);
    }
    assert_eq!(dispatches(&mut scheduler, START)[0].3, 2);
}

/// The same when the slot that is kept for them is not free yet and another one could take ordinary items.
#[test]
fn the_lease_waits_for_suspects() {
    let mut scheduler = scheduler(3);
    let serial = open(&mut scheduler, &seq(0), Tickets::Unbounded);
    scheduler.admit(serial, &[1; 9], START).expect("tickets");
    assert!(
        dispatches(&mut scheduler, START)
            .iter()
            .all(|sent| sent.0 == SlotId(0))
    );
    let farmed = open(&mut scheduler, &farm(seq(1)), Tickets::Unbounded);
    scheduler.admit(farmed, &[1; 4], START).expect("tickets");
    let sent = dispatches(&mut scheduler, START);
    assert_eq!(
        sent.iter().map(|sent| sent.0.0).collect::<Vec<_>>(),
        [1, 2, 1, 2]
    );
    scheduler.remove_slot(SlotId(0), Departure::Lost, START);
    // Both others are as busy; the first of them is kept for the suspects.
    assert_eq!(dispatches(&mut scheduler, START), []);
    for (slot, frame, _, first, count) in sent.into_iter().filter(|sent| sent.0 == SlotId(2)) {
        assert!(answer(&mut scheduler, slot, frame, first, count, START));
        let next = dispatches(&mut scheduler, START);
        assert!(
            next.iter().all(|sent| sent.3 < 2),
            "suspects are items 0 and 1: {next:?}"
        );
    }
}

/// Two slots through a serial stage of `serial` an item and a farmed one of `rest`, a millisecond away, until
/// everything is known; then what was sent last, and the time.
fn settled(serial: Duration, rest: Duration) -> (Scheduler, Vec<Leased>, Duration) {
    let near = Duration::from_millis(1);
    settled_at([near, near], serial, rest)
}

/// The same, each slot at its own distance.
fn settled_at(
    away: [Duration; 2],
    serial: Duration,
    rest: Duration,
) -> (Scheduler, Vec<Leased>, Duration) {
    let mut scheduler = scheduler(2);
    let program = Skeleton::Pipeline(vec![seq(0), farm(seq(1))]);
    let stream = open(&mut scheduler, &program, Tickets::Unbounded);
    scheduler
        .admit(stream, &[1; 100_000], START)
        .expect("tickets");
    let mut now = START;
    let mut sent = leased(&mut scheduler, now);
    for _ in 0..24 {
        let (slot, frame, first, count, lease) = sent.remove(0);
        now += away[slot.0 as usize];
        let (_, from, to) = scheduler.frame(slot, frame).expect("it has the frame");
        let mut busy = if to == 1 { rest * count } else { START };
        if lease == Lease::PassedOn {
            now += serial * count;
            scheduler.released(slot, frame, serial * count, now);
            sent.extend(leased(&mut scheduler, now));
        } else if from == 0 {
            busy += serial * count;
        }
        now += busy;
        let results = Results {
            frame,
            first,
            reached: reached(&scheduler, slot, frame),
            sizes: &vec![0; count as usize],
            ended: &[],
            busy,
        };
        let accepted = scheduler.results(slot, results, now);
        assert!(accepted.is_ok_and(|accepted| accepted.is_some()));
        sent.extend(leased(&mut scheduler, now));
    }
    (scheduler, sent, now)
}

#[test]
fn a_lease_is_passed_on_when_much_can_go_on_meanwhile() {
    let (mut scheduler, sent, now) = settled(Duration::from_micros(10), Duration::from_micros(100));
    let (slot, frame, first, count, lease) = sent[0];
    assert_eq!((lease, sent.len()), (Lease::PassedOn, 1), "{sent:?}");
    scheduler.released(slot, frame, Duration::from_micros(10) * count, now);
    let next = leased(&mut scheduler, now);
    assert_eq!(next.len(), 1, "{next:?}");
    assert_ne!(next[0].0, slot, "the other one is idle");
    assert_eq!(next[0].2, first + u64::from(count), "in the order of items");
}

#[test]
fn a_lease_stays_when_little_can_go_on_meanwhile() {
    let (mut scheduler, sent, now) = settled(Duration::from_micros(10), Duration::from_micros(1));
    let home = sent[0].0;
    assert!(
        sent.len() > 1,
        "frames wait behind the running one: {sent:?}"
    );
    assert!(
        sent.iter()
            .all(|sent| (sent.0, sent.4) == (home, Lease::Kept)),
        "{sent:?}"
    );
    // The other slot is idle all the time, and gets the lease only when this one is lost.
    assert_eq!(actions(&mut scheduler, now), []);
    scheduler.remove_slot(home, Departure::Orderly, now);
    let next = leased(&mut scheduler, now);
    assert!(!next.is_empty() && next.iter().all(|next| next.0 != home));
    assert_eq!(next[0].2, sent[0].2, "what was put back goes first");
}

/// An item of the farmed stage takes long against all experience, at the slot that keeps the lease.
#[test]
fn a_lease_does_not_wait_for_a_slow_item_behind_it() {
    let (mut scheduler, mut sent, now) =
        settled(Duration::from_micros(10), Duration::from_micros(1));
    let home = sent[0].0;
    let wake = scheduler.next_timeout().expect("the slot is watched");
    assert!(wake > now);
    assert_eq!(actions(&mut scheduler, wake - Duration::from_nanos(1)), []);
    let mut asked = Vec::new();
    for action in actions(&mut scheduler, wake) {
        match action {
            Action::Recall { frame, count, .. } => asked.push((frame, count)),
            // By its estimate the frame that runs must be through soon.
            Action::Dispatch {
                slot,
                frame,
                first,
                count,
                lease,
                ..
            } => sent.push((slot, frame, first, count, lease)),
            other => panic!("{other:?}"),
        }
    }
    assert!(sent.iter().all(|sent| sent.0 == home));
    let all = sent.iter().rev().map(|sent| (sent.1, sent.3));
    assert_eq!(asked, all.collect::<Vec<_>>(), "from the last one on");
    for (slot, frame, first, count, _) in sent.iter().skip(1).rev() {
        scheduler.recalled(*slot, *frame, *first, *count, wake);
    }
    let (_, frame, first, count, _) = sent[0];
    scheduler.recalled(home, frame, first + 1, count - 1, wake);
    assert_eq!(
        leased(&mut scheduler, wake),
        [],
        "the running item may be in the serial function"
    );
    scheduler.released(home, frame, Duration::ZERO, wake);
    let next = leased(&mut scheduler, wake);
    assert_ne!(next[0].0, home);
    assert_eq!(next[0].2, first + 1);
    assert!(answer(
        &mut scheduler,
        home,
        frame,
        first,
        1,
        wake + Duration::from_secs(9)
    ));
}

/// A slot so far away that nothing is gained by moving the lease there: it gets the lease all the same when the one that
/// had it is held up, whatever that slot had passed on or given back before.
#[test]
fn a_lease_goes_far_rather_than_nowhere() {
    let away = [Duration::from_millis(1), Duration::from_millis(400)];
    let (mut scheduler, mut sent, mut now) =
        settled_at(away, Duration::from_micros(10), Duration::from_micros(30));
    let near = SlotId(0);
    assert!(sent.iter().all(|sent| sent.0 == near), "{sent:?}");
    // An item at the near slot takes for ever. It answers what needs no item to end.
    let stuck = sent[0].1;
    let mut ends = std::collections::BTreeMap::new();
    for _ in 0..100 {
        let passing = std::mem::take(&mut sent);
        for (slot, frame, first, count, lease) in passing {
            ends.insert(frame, first + u64::from(count));
            if slot != near {
                return;
            }
            if lease == Lease::PassedOn && frame == stuck {
                scheduler.released(slot, frame, Duration::from_micros(10) * count, now);
            }
        }
        for action in actions(&mut scheduler, now) {
            match action {
                Action::Dispatch {
                    slot,
                    frame,
                    first,
                    count,
                    lease,
                    ..
                } => sent.push((slot, frame, first, count, lease)),
                Action::Recall { slot, frame, count } if frame != stuck => {
                    let first = ends[&frame] - u64::from(count);
                    scheduler.recalled(slot, frame, first, count, now);
                }
                other => panic!("{other:?}"),
            }
        }
        if sent.is_empty() {
            now = scheduler
                .next_timeout()
                .expect("somebody has to look again");
        }
    }
    panic!("the far slot never got anything");
}

/// What has passed a serial function and waits for the functions behind it is asked back for an idle slot, and comes as tokens
/// for those: nothing passes the serial function twice.
#[test]
fn what_waits_halfway_goes_on_elsewhere() {
    let (serial, rest) = (Duration::from_micros(10), Duration::from_micros(100));
    let (mut scheduler, sent, now) = settled(serial, rest);
    let (busy, frame, first, count, lease) = sent[0];
    assert_eq!(lease, Lease::PassedOn, "{sent:?}");
    assert!(count > 4, "{count} items in a frame");
    // Nothing is left but this frame, and it takes long against all experience.
    let (stream, ..) = scheduler.frame(busy, frame).expect("it has the frame");
    scheduler.end_of_input(stream);
    let waiting: Vec<Index> = scheduler.waiting(stream, 0).collect();
    for index in waiting {
        assert_eq!(scheduler.cancel(stream, index, now), Cancel::Removed);
    }
    let late = now + Duration::from_secs(1);
    assert_eq!(
        actions(&mut scheduler, late),
        [],
        "it may be in the serial function"
    );
    scheduler.released(busy, frame, serial * count, late);
    let later = late + Duration::from_secs(1);
    let asked = actions(&mut scheduler, later);
    let [
        Action::Recall {
            slot, count: back, ..
        },
    ] = asked[..]
    else {
        panic!("{asked:?}");
    };
    assert_eq!((slot, back), (busy, (count - 1).div_ceil(2)));
    let from = first + u64::from(count - back);
    let results = Results {
        frame,
        first: from,
        reached: 1,
        sizes: &vec![10; back as usize],
        ended: &[],
        busy: Duration::ZERO,
    };
    let accepted = scheduler.results(busy, results, later);
    let accepted = accepted.expect("within its grant").expect("in time");
    assert_eq!((accepted.from, accepted.reached), (0, 1));
    assert_eq!(accepted.outcomes, []);
    scheduler.recalled(busy, frame, 0, 0, later);
    let did = scheduler.slot_statistics(busy).expect("known");
    assert_eq!((did.asked, did.asked_in_vain), (back.into(), 0));
    let next = actions(&mut scheduler, later);
    let [
        Action::Dispatch {
            slot,
            from: 1,
            to: 1,
            first,
            lease: Lease::None,
            ..
        },
        ..,
    ] = next[..]
    else {
        panic!("{next:?}");
    };
    assert_ne!(slot, busy);
    assert_eq!(first, from);
}

/// Where a lease would wait for long behind items of the functions after it, the serial function stays at one slot, and its items go on
/// elsewhere; until a slot can't give back what has passed it, and goes on by itself.
#[test]
fn a_serial_segment_runs_by_itself_where_its_lease_would_wait() {
    let millis = Duration::from_millis;
    let (mut scheduler, mut sent, mut now) = settled(millis(8), millis(10));
    let (mut homes, mut ends) = (Vec::new(), Vec::new());
    for _ in 0..12 {
        let (slot, frame, first, count, lease) = sent.remove(0);
        let (_, from, to) = scheduler.frame(slot, frame).expect("it has the frame");
        assert_eq!(from, to, "{lease:?}");
        if from == 0 {
            assert_eq!(lease, Lease::Kept);
            homes.push(slot);
        } else {
            ends.push(slot);
        }
        now += millis(10);
        assert!(answer(&mut scheduler, slot, frame, first, count, now));
        sent.extend(leased(&mut scheduler, now));
    }
    assert!(homes.iter().all(|home| *home == homes[0]), "{homes:?}");
    assert!(ends.iter().any(|end| *end != homes[0]), "{ends:?}");
    let alone = |sent: &Leased| {
        scheduler
            .frame(sent.0, sent.1)
            .map(|(_, from, to)| (from, to))
    };
    let place = sent.iter().position(|sent| alone(sent) == Some((0, 0)));
    let (slot, frame, first, count, _) = sent.remove(place.expect("the serial function runs"));
    let results = Results {
        frame,
        first,
        reached: 2,
        sizes: &vec![1; count as usize],
        ended: &[],
        busy: millis(18) * count,
    };
    let accepted = scheduler.results(slot, results, now);
    let accepted = accepted.expect("within its grant").expect("in time");
    let all = first..first + u64::from(count);
    assert_eq!(accepted.outcomes, std::slice::from_ref(&all));
    // From now on it is not tried again.
    let mut rounds = 0;
    sent.extend(leased(&mut scheduler, now));
    while rounds < 20 && !sent.is_empty() {
        let (slot, frame, first, count, lease) = sent.remove(0);
        let (_, from, to) = scheduler.frame(slot, frame).expect("it has the frame");
        rounds += u32::from(from == 0 && to == 1);
        now += millis(10);
        if lease == Lease::PassedOn {
            scheduler.released(slot, frame, millis(8) * count, now);
        }
        assert!(answer(&mut scheduler, slot, frame, first, count, now));
        let more = leased(&mut scheduler, now);
        let goes_on = |sent: &Leased| {
            scheduler
                .frame(sent.0, sent.1)
                .map(|(_, from, to)| (from, to))
        };
        assert!(
            more.iter().all(|sent| goes_on(sent) != Some((0, 0))),
            "{more:?}"
        );
        sent.extend(more);
    }
    assert_eq!(rounds, 20);
}
