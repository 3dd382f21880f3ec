//! Slots that give back what nobody has asked for.

use std::time::Duration;

use exoskel_flow::*;

const START: Duration = Duration::ZERO;

/// A frame as a slot gets it: slot, frame, first item, count.
type Given = (SlotId, FrameId, Index, u32);

fn begun(skeleton: &Skeleton, slots: u32, items: usize) -> Scheduler {
    let mut scheduler = Scheduler::new(SchedulerConfig::default());
    (0..slots).for_each(|slot| scheduler.add_slot(SlotId(slot), START).expect("a slot"));
    let program = Program::compile(skeleton).expect("a program");
    let tickets = Tickets::Unbounded;
    let stream = scheduler.open_stream(
        &program,
        StreamOptions {
            tickets,
            time_limit: None,
        },
        START,
    );
    let stream = stream.expect("a stream");
    scheduler
        .admit(stream, &vec![1; items], START)
        .expect("admitted");
    scheduler.end_of_input(stream);
    scheduler
}

fn dispatched(scheduler: &mut Scheduler, now: Duration) -> Vec<Given> {
    std::iter::from_fn(|| scheduler.poll_action(now))
        .filter_map(|action| match action {
            Action::Dispatch {
                slot,
                frame,
                first,
                count,
                ..
            } => Some((slot, frame, first, count)),
            _ => None,
        })
        .collect()
}

fn answer(scheduler: &mut Scheduler, (slot, frame, first, count): Given, now: Duration) {
    let results = Results {
        frame,
        first,
        reached: 1,
        sizes: &vec![10; count as usize],
        ended: &[],
        busy: Duration::from_micros(10) * count,
    };
    let accepted = scheduler.results(slot, results, now);
    assert!(accepted.expect("within its grant").is_some());
}

/// Attack: a slot that takes what there is and gives it back at once, so that nothing is ever done.
#[test]
fn who_gives_everything_back_keeps_nothing_from_others() {
    let serial = Skeleton::Seq(FunctionId(0));
    for skeleton in [Skeleton::Farm(Box::new(serial.clone())), serial] {
        let mut scheduler = begun(&skeleton, 2, 5);
        let (mut now, mut done, mut given_back) = (START, 0, 0);
        while done < 5 {
            for given in dispatched(&mut scheduler, now) {
                let (slot, frame, first, count) = given;
                if slot == SlotId(0) {
                    scheduler.recalled(slot, frame, first, count, now);
                    given_back += 1;
                } else {
                    answer(&mut scheduler, given, now);
                    done += count;
                }
            }
            now += Duration::from_micros(100);
            assert!(now < Duration::from_secs(1), "{done} of 5 after {now:?}");
        }
        assert!(given_back < 10, "{given_back}");
    }
}

#[test]
fn who_gives_back_gets_work_again_when_there_is_nobody_else() {
    let farm = Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0))));
    let mut scheduler = begun(&farm, 1, 5);
    let (mut now, mut waits) = (START, Vec::new());
    for _ in 0..20 {
        let all = loop {
            let all = dispatched(&mut scheduler, now);
            if !all.is_empty() {
                break all;
            }
            let next = scheduler.next_timeout().expect("a time to look again");
            waits.push(next - now);
            now = next;
        };
        for (slot, frame, first, count) in all {
            scheduler.recalled(slot, frame, first, count, now);
        }
    }
    assert_eq!(waits.iter().max(), Some(&Duration::from_millis(4096)));
    // An answer ends that.
    now += Duration::from_secs(5);
    let given = dispatched(&mut scheduler, now)[0];
    answer(&mut scheduler, given, now);
    let (slot, frame, first, count) = dispatched(&mut scheduler, now)[0];
    scheduler.recalled(slot, frame, first, count, now);
    assert!(!dispatched(&mut scheduler, now).is_empty());
}
