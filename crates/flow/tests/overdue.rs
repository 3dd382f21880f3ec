//! Slots that neither answer for an item in time nor end.

use std::time::Duration;

use exoskel_flow::*;

const START: Duration = Duration::ZERO;
const SLOT: SlotId = SlotId(7);
const LIMIT: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

struct Run {
    scheduler: Scheduler,
    stream: StreamId,
    now: Duration,
    /// Frame, first item, count.
    given: Vec<(FrameId, Index, u32)>,
    granted: Vec<(FrameId, Index)>,
    overdue: Vec<SlotId>,
    let_go: Vec<SlotId>,
}

impl Run {
    /// Items of a farm, and one slot for them.
    fn new(time_limit: Option<Duration>, sizes: &[u64]) -> Self {
        let mut scheduler = Scheduler::new(SchedulerConfig::default());
        scheduler.add_slot(SLOT, START).expect("a slot");
        let farm = Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0))));
        let options = StreamOptions {
            tickets: Tickets::Unbounded,
            time_limit,
        };
        let program = Program::compile(&farm).expect("a program");
        let stream = scheduler.open_stream(&program, options, START);
        let stream = stream.expect("a stream");
        scheduler.admit(stream, sizes, START).expect("tickets");
        let mut run = Self {
            scheduler,
            stream,
            now: START,
            given: Vec::new(),
            granted: Vec::new(),
            overdue: Vec::new(),
            let_go: Vec::new(),
        };
        run.look();
        run
    }

    /// Many items that have turned out to be short, so that the slot has a frame of many of them.
    fn with_one_frame(time_limit: Option<Duration>) -> Self {
        let mut run = Self::new(time_limit, &[1; 3000]);
        while run.given[0].2 < 20 {
            let (frame, first, count) = run.given.remove(0);
            let sizes = vec![10; count as usize];
            let results = Results {
                sizes: &sizes,
                busy: Duration::from_micros(20) * count,
                ..of_one(frame, first)
            };
            run.now += Duration::from_millis(1);
            let accepted = run.scheduler.results(SLOT, results, run.now);
            assert!(accepted.expect("within its grant").is_some());
            run.look();
        }
        run
    }

    fn look(&mut self) {
        while let Some(action) = self.scheduler.poll_action(self.now) {
            match action {
                Action::Dispatch {
                    frame,
                    first,
                    count,
                    ..
                } => self.given.push((frame, first, count)),
                Action::Grant { frame, index, .. } => self.granted.push((frame, index)),
                Action::Overdue { slot } => self.overdue.push(slot),
                Action::LetGo { slot } => self.let_go.push(slot),
                _ => {}
            }
        }
    }

    /// Time passes, and whoever is to be woken is.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(wake) = self.scheduler.next_timeout().filter(|wake| *wake < end) {
            assert!(wake > self.now, "it is woken for nothing at {wake:?}");
            self.now = wake;
            self.look();
        }
        self.now = end;
        self.look();
    }

    /// The slot answers for the oldest item that it has.
    fn answer(&mut self) {
        let (frame, first, count) = self.given.remove(0);
        let accepted = self.scheduler.results(SLOT, of_one(frame, first), self.now);
        assert!(accepted.expect("within its grant").is_some());
        if count > 1 {
            self.given.insert(0, (frame, first + 1, count - 1));
        }
        self.look();
    }
}

/// The result of one item.
fn of_one(frame: FrameId, index: Index) -> Results<'static> {
    Results {
        frame,
        first: index,
        reached: 1,
        sizes: &[10],
        ended: &[],
        busy: LIMIT,
    }
}

fn answer_time() -> Duration {
    SchedulerConfig::default().answer_time
}

#[test]
fn who_neither_answers_nor_ends_is_named_once_its_time_is_over() {
    let mut run = Run::new(Some(LIMIT), &[1, 1]);
    run.pass(answer_time());
    assert_eq!(run.overdue, []);
    run.pass(LIMIT * 3);
    assert_eq!(run.overdue, [SLOT]);
}

#[test]
fn who_answers_each_time_just_before_that_is_not_named() {
    let mut run = Run::new(Some(LIMIT), &[1; 50]);
    for _ in 0..50 {
        run.pass(answer_time());
        run.answer();
    }
    run.pass(30 * SECOND);
    assert_eq!(run.overdue, []);
    assert_eq!(run.scheduler.next_timeout(), None);
}

/// Aim: others are answered for while one item is kept back. Method: the second frame is answered for all the time, the first one never.
#[test]
fn who_keeps_back_one_item_is_named_although_it_answers_for_others() {
    let mut run = Run::new(Some(LIMIT), &[1; 50]);
    let kept = run.given.remove(0);
    for _ in 0..40 {
        run.pass(answer_time() / 20);
        run.answer();
    }
    assert_eq!(run.overdue, [SLOT], "{kept:?}");
}

/// Aim: nothing that is said of later items makes time for the oldest one. Method: one frame, of which the last item is answered for, given back
/// or announced each time before the time is over.
#[test]
fn who_keeps_back_the_oldest_item_is_named_although_it_is_rid_of_others() {
    let mut times = Vec::new();
    for saying in ["nothing", "a result", "a recall", "an announcement"] {
        let mut run = Run::with_one_frame(Some(LIMIT));
        let (frame, first, count) = run.given[0];
        let (begun, mut left) = (run.now, count);
        while run.overdue.is_empty() && left > 1 {
            run.pass(answer_time() / 2);
            left -= 1;
            let last = first + u64::from(left);
            let now = run.now;
            match saying {
                "a result" => {
                    let accepted = run.scheduler.results(SLOT, of_one(frame, last), now);
                    assert!(accepted.expect("within its grant").is_some());
                }
                "nothing" => {}
                "a recall" => run.scheduler.recalled(SLOT, frame, last, 1, now),
                _ => {
                    let items = last..last + 1;
                    let said = run.scheduler.announced(SLOT, frame, items, 1 << 20, now);
                    said.expect("it had it");
                }
            }
            run.look();
        }
        assert_eq!(run.overdue, [SLOT], "{saying}");
        times.push(run.now - begun);
    }
    // A slot that answers gets more work, for whose answers there must be time as well: there is a limit to that.
    let most = times[0] + answer_time();
    assert!(times.iter().all(|time| *time <= most), "{times:?}");
}

/// Aim: who works through a frame in order has a whole time for each item. Method: each item of one frame takes its limit, twice, and its answer is late.
#[test]
fn who_works_through_a_frame_in_order_is_not_named() {
    let mut run = Run::with_one_frame(Some(LIMIT));
    let count = run.given[0].2;
    assert!(count > 10);
    for _ in 0..count {
        run.pass(LIMIT * 2 + answer_time() * 9 / 10);
        run.answer();
        assert_eq!(run.overdue, []);
    }
}

#[test]
fn an_item_without_a_limit_may_run_for_ever() {
    let mut run = Run::new(None, &[1]);
    run.pass(answer_time() * 1000);
    assert_eq!((run.overdue, run.scheduler.next_timeout()), (vec![], None));
}

#[test]
fn what_is_on_a_slow_way_has_more_time() {
    let config = SchedulerConfig::default();
    let bytes = config.answer_rate_min * 1000;
    let mut run = Run::new(Some(LIMIT), &[bytes]);
    run.pass(answer_time() + 900 * SECOND);
    assert_eq!(run.overdue, []);
    run.pass(200 * SECOND);
    assert_eq!(run.overdue, [SLOT]);
}

#[test]
fn who_does_not_send_what_it_may_send_is_named() {
    let mut run = Run::new(Some(LIMIT), &[1]);
    let (frame, index, _) = run.given[0];
    let large = 1 << 20;
    let said = run
        .scheduler
        .announced(SLOT, frame, index..index + 1, large, START);
    said.expect("it had it");
    run.look();
    assert_eq!(run.granted, [(frame, index)]);
    run.pass(answer_time());
    assert_eq!(run.overdue, []);
    run.pass(30 * SECOND);
    assert_eq!(run.overdue, [SLOT]);
}

#[test]
fn who_goes_on_with_what_nobody_needs_is_named() {
    let mut run = Run::new(None, &[1]);
    run.pass(answer_time() * 2);
    run.scheduler.close_stream(run.stream, run.now);
    run.look();
    run.pass(answer_time());
    assert_eq!(run.overdue, []);
    run.pass(30 * SECOND);
    assert_eq!(run.overdue, [SLOT]);
    run.scheduler
        .remove_slot(SLOT, Departure::Lost, run.now)
        .expect("it was there");
    run.pass(SECOND);
    assert_eq!(run.scheduler.next_timeout(), None);
}

/// Aim: a manager that was stopped for long blames nobody for it. Method: time jumps, and nobody looks meanwhile.
#[test]
fn who_stood_still_takes_nobody_for_overdue() {
    let mut run = Run::new(Some(LIMIT), &[1, 1]);
    run.pass(SECOND);
    run.now += answer_time() * 100;
    run.look();
    run.pass(answer_time() / 2);
    assert_eq!(run.overdue, []);
    run.pass(answer_time());
    assert_eq!(run.overdue, [SLOT]);
}

/// Two results: the first one takes all the room there is, the second one waits at a slot that is to end.
fn waiting_at_a_slot_that_is_to_end() -> Run {
    let mut run = Run::new(None, &[1, 1]);
    let budget = SchedulerConfig::default().result_budget_bytes;
    for bytes in [budget, 1 << 20] {
        let (frame, first, _) = run.given.remove(0);
        let items = first..first + 1;
        let announced = run.scheduler.announced(SLOT, frame, items, bytes, run.now);
        announced.expect("it is new");
        run.look();
        if run.granted.contains(&(frame, first)) {
            let results = Results {
                sizes: &[bytes],
                ..of_one(frame, first)
            };
            let accepted = run.scheduler.results(SLOT, results, run.now);
            assert!(accepted.expect("within its grant").is_some());
            run.look();
        }
    }
    assert_eq!(run.granted.len(), 1, "there is room for one of them");
    run.scheduler.drain_slot(SLOT, run.now);
    run.look();
    run
}

/// The same, and an item that waits for a slot.
fn waiting_beside_an_item_without_a_slot() -> Run {
    let mut run = waiting_at_a_slot_that_is_to_end();
    let admitted = run.scheduler.admit(run.stream, &[1], run.now);
    admitted.expect("tickets");
    run.look();
    run
}

#[test]
fn who_is_to_end_and_waits_for_room_that_nobody_makes_is_let_go() {
    let mut run = waiting_beside_an_item_without_a_slot();
    run.pass(answer_time());
    assert_eq!(run.let_go, []);
    run.pass(answer_time() / 10);
    assert_eq!((&run.let_go[..], &run.overdue[..]), (&[SLOT][..], &[][..]));
    run.scheduler.remove_slot(SLOT, Departure::Orderly, run.now);
    let other = SlotId(8);
    run.scheduler.add_slot(other, run.now).expect("a slot");
    run.look();
    let again: Vec<Index> = run.given.iter().map(|(_, first, _)| *first).collect();
    assert_eq!(again, [1, 2], "what waited runs again");
}

#[test]
fn who_is_to_end_waits_for_whoever_may_make_room() {
    // Only the user can make room.
    let mut run = waiting_at_a_slot_that_is_to_end();
    run.pass(answer_time() * 10);
    assert_eq!(run.let_go, []);
    let mut run = waiting_beside_an_item_without_a_slot();
    run.pass(answer_time() / 2);
    // The user takes a result in the end.
    run.scheduler.taken(run.stream, 0, 1, run.now);
    run.look();
    assert_eq!(run.granted.len(), 2);
    let mut run = waiting_beside_an_item_without_a_slot();
    run.pass(answer_time() / 2);
    run.scheduler.add_slot(SlotId(8), run.now).expect("a slot");
    run.pass(answer_time() * 2);
    assert_eq!(run.let_go, []);
}
