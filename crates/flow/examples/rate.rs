//! How many no-op items a second pass admission, dispatch, results and taking, with two slots.
//!
//!     cargo run --release -p exoskel-flow --example rate [ITEMS [ITEMS_A_FRAME]]
//!
//! What one item costs the scheduler, in instructions: `valgrind --tool=callgrind target/release/examples/rate 2000000 256`, divided by the items.

use std::collections::VecDeque;
use std::time::Duration;

use exoskel_flow::{
    Action, FunctionId, Program, Results, Scheduler, SchedulerConfig, Skeleton, SlotId,
    StreamOptions,
};

const ITEMS: u64 = 20_000_000;

#[expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "an example that measures and tells"
)]
fn main() {
    let mut arguments = std::env::args()
        .skip(1)
        .map(|text| text.parse().expect("a number"));
    let all = arguments.next().unwrap_or(ITEMS);
    let sizes = match arguments.next() {
        Some(size) => vec![u32::try_from(size).expect("a size of frames")],
        None => vec![1, 16, 256, SchedulerConfig::default().frame_items_max],
    };
    for frame_items_max in sizes {
        let items = all / if frame_items_max == 1 { 10 } else { 1 };
        let start = std::time::Instant::now();
        let frames = run(items, frame_items_max);
        let seconds = start.elapsed().as_secs_f64();
        let (rate, mean) = (items as f64 / seconds / 1e6, items as f64 / frames as f64);
        println!(
            "at most {frame_items_max:4} items a frame: {rate:6.1} million items/s, {mean:6.1} items a frame"
        );
    }
}

/// Says how many frames it took.
fn run(items: u64, frame_items_max: u32) -> u64 {
    let mut now = Duration::ZERO;
    let mut scheduler = Scheduler::new(SchedulerConfig {
        frame_items_max,
        ..SchedulerConfig::default()
    });
    let program = Program::compile(&Skeleton::Farm(Box::new(Skeleton::Seq(FunctionId(0)))))
        .expect("a program");
    let slots = [SlotId(0), SlotId(1)];
    for slot in slots {
        scheduler.add_slot(slot, now).expect("a slot");
    }
    let stream = scheduler
        .open_stream(&program, StreamOptions::default(), now)
        .expect("a stream");
    let mut at_slots = [VecDeque::new(), VecDeque::new()];
    let (mut admitted, mut taken, mut frames) = (0, 0, 0);
    let sizes = vec![64; SchedulerConfig::default().tickets_max as usize];
    while taken < items {
        let count = u64::from(scheduler.tickets(stream)).min(items - admitted) as usize;
        scheduler
            .admit(stream, &sizes[..count], now)
            .expect("tickets");
        admitted += count as u64;
        while let Some(action) = scheduler.poll_action(now) {
            if let Action::Dispatch {
                slot,
                frame,
                first,
                count,
                ..
            } = action
            {
                at_slots[slot.0 as usize].push_back((frame, first, count));
                frames += 1;
            }
        }
        for slot in slots {
            // A slot answers for the older half of what it has, so that its queue is never empty.
            let queue = &mut at_slots[slot.0 as usize];
            for _ in 0..queue.len().div_ceil(2) {
                let Some((frame, first, count)) = queue.pop_front() else {
                    break;
                };
                now += Duration::from_nanos(u64::from(count) * 500);
                let busy = Duration::from_nanos(u64::from(count) * 1000);
                let results = Results {
                    frame,
                    first,
                    reached: 1,
                    sizes: &vec![64; count as usize],
                    ended: &[],
                    busy,
                };
                let accepted = scheduler.results(slot, results, now);
                let accepted = accepted.expect("within its grant").expect("in time");
                let ranges = accepted.outcomes.to_vec();
                for range in ranges {
                    let count = (range.end - range.start) as u32;
                    taken += u64::from(scheduler.taken(stream, range.start, count, now));
                }
            }
        }
    }
    frames
}
