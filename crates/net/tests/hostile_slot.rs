//! A worker with a good certificate and bad manners: whatever it sends, the manager goes on, and every item has
//! exactly one outcome.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod crew;
mod wire;

use std::io::{ErrorKind, IoSliceMut};
use std::time::Duration;

use bytes::Bytes;
use exoskel_link::{MessageKind, TrafficClass};
use exoskel_net::manager::Notice;
use exoskel_net::message::{Digest, Execute, PIECE_BYTES_MAX, RESULT_ENDPOINT, ToManager};
use exoskel_net::payload::{Format, RecordWriter};

use crew::{Hostile, SHARED, Strike, outcomes, records};

/// The manager ends the session over this, and says so to its user.
fn assert_dismissed(strike: Strike) {
    assert_told(strike, "lost worker evil");
}

fn assert_told(strike: Strike, what: &str) {
    let outcome = outcomes(strike, 1);
    assert_eq!(outcome.struck, 1);
    let told = |notice: &Notice| matches!(notice, Notice::Warning(text) if text.contains(what));
    assert!(outcome.notices.iter().any(told), "{:?}", outcome.notices);
}

/// The manager takes no notice of this, and the slot goes on.
fn assert_ignored(strike: Strike) {
    let outcome = outcomes(strike, 3);
    assert!(outcome.struck > 0);
}

#[test]
fn an_honest_pair_does_the_work() {
    assert_ignored(|slot, execute| slot.answer(execute));
}

#[test]
fn heads_that_are_too_short_end_the_session() {
    assert_dismissed(|slot, _| {
        slot.raw(
            slot.results,
            0,
            MessageKind::Post,
            Bytes::from_static(b"short"),
            Vec::new(),
        );
    });
    assert_dismissed(|slot, _| {
        slot.raw(
            slot.results,
            3,
            MessageKind::Post,
            Bytes::from_static(&[0; 33]),
            Vec::new(),
        );
    });
}

#[test]
fn handlers_that_do_not_exist_end_the_session() {
    assert_dismissed(|slot, _| {
        // Before the manager has said how many there are, its own session lets it pass.
        let open = |session: &mut exoskel_link::Session| {
            session.open_link(RESULT_ENDPOINT, TrafficClass::Data)
        };
        let link = slot.connection.with(open).unwrap();
        slot.raw(link, u16::MAX, MessageKind::Post, Bytes::new(), Vec::new());
    });
}

/// A manager that hears nobody itself does not want to be told either.
#[test]
fn telling_a_manager_that_does_not_want_to_know_ends_the_session() {
    assert_dismissed(|slot, _| {
        let open = |session: &mut exoskel_link::Session| {
            session.open_link(RESULT_ENDPOINT, TrafficClass::Data)
        };
        let link = slot.connection.with(open).unwrap();
        let nobody = ToManager::Heard {
            workers: Vec::new(),
        };
        let (handler, head) = nobody.encode();
        slot.raw(link, handler, MessageKind::Post, head, Vec::new());
    });
}

#[test]
fn results_of_frames_that_it_never_got_are_dropped() {
    assert_ignored(|slot, execute| {
        for frame in [execute.frame + 1, execute.frame + 1000, 0, u64::MAX] {
            let stolen = Execute {
                frame,
                ..execute.clone()
            };
            if frame != execute.frame {
                slot.say(&slot.honest(&stolen, execute.first, execute.count));
            }
        }
        slot.answer(execute);
    });
}

#[test]
fn results_of_items_that_are_not_in_the_frame_are_dropped() {
    assert_ignored(|slot, execute| {
        let behind = execute.first + u64::from(execute.count);
        slot.say(&slot.honest(execute, behind, 5));
        slot.say(&slot.honest(execute, u64::MAX - 5, 5));
        slot.answer(execute);
    });
}

#[test]
fn results_given_twice_count_once() {
    assert_ignored(|slot, execute| {
        slot.answer(execute);
        slot.answer(execute);
    });
}

#[test]
fn results_with_overlapping_ranges_count_once() {
    assert_ignored(|slot, execute| {
        let half = execute.count.div_ceil(2);
        slot.say(&slot.honest(execute, execute.first, half));
        slot.say(&slot.honest(execute, execute.first, execute.count));
        let middle = execute.first + u64::from(half / 2);
        slot.say(&slot.honest(execute, middle, execute.count - half / 2));
    });
}

#[test]
fn results_beyond_both_ends_of_the_frame_count_inside_it() {
    assert_ignored(|slot, execute| {
        let first = execute.first.saturating_sub(3);
        let before = u32::try_from(execute.first - first).unwrap();
        slot.say(&slot.honest(execute, first, before + execute.count + 3));
    });
}

/// A count that would make the manager reserve 16 GiB.
#[test]
fn a_count_of_all_items_there_can_be_ends_the_session() {
    assert_dismissed(|slot, execute| {
        slot.say(&claim(
            execute,
            u32::MAX,
            records(execute.to, execute.first, 1),
        ));
    });
}

fn claim(execute: &Execute, count: u32, records: Bytes) -> ToManager {
    ToManager::Results {
        frame: execute.frame,
        first: execute.first,
        reached: execute.to + 1,
        count,
        busy: 0,
        records,
    }
}

#[test]
fn fewer_results_than_it_says_end_the_session() {
    assert_dismissed(|slot, execute| {
        slot.say(&claim(execute, execute.count, Bytes::new()));
    });
}

#[test]
fn more_results_than_it_says_end_the_session() {
    assert_dismissed(|slot, execute| {
        let many = records(execute.to, execute.first, execute.count + 1);
        slot.say(&claim(execute, execute.count, many));
    });
}

#[test]
fn records_that_are_none_end_the_session() {
    assert_dismissed(|slot, execute| {
        slot.say(&claim(
            execute,
            execute.count,
            Bytes::from_static(&[0xff; 64]),
        ));
    });
    // A body of 2^61 bytes.
    assert_dismissed(|slot, execute| {
        let huge = [
            0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0, 0,
        ];
        slot.say(&claim(
            execute,
            execute.count,
            Bytes::copy_from_slice(&huge),
        ));
    });
}

/// The same at the end of the program, where results go to the user and to no other slot.
#[test]
fn bad_results_of_the_last_segment_end_the_session() {
    fn at_the_end(slot: &Hostile, execute: &Execute, records: Bytes) {
        if execute.from == 0 {
            slot.answer(execute);
        } else {
            slot.say(&claim(execute, execute.count, records));
        }
    }
    for strike in [
        (|slot, execute| at_the_end(slot, execute, Bytes::new())) as Strike,
        |slot, execute| at_the_end(slot, execute, Bytes::from_static(&[0xff; 64])),
        |slot, execute| {
            let many = records(execute.to, execute.first, execute.count + 1);
            at_the_end(slot, execute, many);
        },
        |slot, execute| {
            let few = records(execute.to, execute.first, execute.count - 1);
            at_the_end(slot, execute, few);
        },
    ] {
        let outcome = outcomes(strike, usize::MAX);
        assert!(outcome.struck > 0);
    }
}

#[test]
fn bulk_parts_that_do_not_match_end_the_session() {
    // Some that no record speaks of.
    assert_dismissed(|slot, execute| {
        let part = Bytes::from_static(b"part of nothing");
        let records = records(execute.to, execute.first, execute.count);
        slot.say_with(&claim(execute, execute.count, records), vec![part; 3]);
    });
    // Records that speak of some that are not there.
    assert_dismissed(|slot, execute| {
        let mut writer = RecordWriter::default();
        for _ in 0..execute.count {
            writer.push(
                Format::Data,
                false,
                b"data",
                &[],
                [Bytes::from_static(b"part")],
            );
        }
        slot.say(&claim(execute, execute.count, writer.take().1));
    });
}

#[test]
fn splices_outside_their_pickle_end_the_session() {
    assert_dismissed(|slot, execute| {
        let mut writer = RecordWriter::default();
        for _ in 0..execute.count {
            writer.push(
                Format::Pickle,
                false,
                b"pickle",
                &[1 << 30],
                [Bytes::from_static(b"part")],
            );
        }
        let (count, records, bulk) = writer.take();
        slot.say_with(&claim(execute, count, records), bulk);
    });
}

/// A manager must not have to hold what it never asked for.
#[test]
fn results_over_their_grants_end_the_session() {
    assert_dismissed(|slot, execute| {
        let size = usize::try_from(execute.grant).unwrap() + 1;
        let mut writer = RecordWriter::default();
        writer.push(Format::Data, false, &[], &[], [vec![7; size].into()]);
        let (_, records, bulk) = writer.take();
        slot.say_with(&claim(execute, 1, records), bulk);
    });
}

#[test]
fn results_that_are_announced_twice_end_the_session() {
    assert_dismissed(|slot, execute| {
        for bytes in [1 << 20, 1] {
            slot.say(&ToManager::Announced {
                frame: execute.frame,
                index: execute.first,
                count: 1,
                bytes,
                busy: 0,
            });
        }
    });
}

#[test]
fn announced_sizes_without_measure_hold_nobody_up() {
    assert_ignored(|slot, execute| {
        for (number, index) in (execute.first..).take(execute.count as usize).enumerate() {
            slot.say(&ToManager::Announced {
                frame: execute.frame,
                index,
                count: 1,
                bytes: if number % 2 == 0 { 1 << 63 } else { u64::MAX },
                busy: u64::MAX,
            });
        }
        // The results follow when they are granted.
    });
}

#[test]
fn announcements_of_what_it_has_not_are_dropped() {
    assert_ignored(|slot, execute| {
        for (frame, index) in [
            (execute.frame + 1, execute.first),
            (execute.frame, u64::MAX),
            (execute.frame, execute.first + u64::from(execute.count)),
        ] {
            slot.say(&ToManager::Announced {
                frame,
                index,
                count: 1,
                bytes: 1 << 63,
                busy: 0,
            });
        }
        slot.answer(execute);
    });
}

#[test]
fn items_that_nobody_asked_back_are_run_once_all_the_same() {
    assert_ignored(|slot, execute| {
        for (frame, first, count) in [
            (execute.frame, 0, u32::MAX),
            (execute.frame, execute.first, execute.count),
            (execute.frame, u64::MAX, u32::MAX),
            (execute.frame + 7, execute.first, 1),
        ] {
            slot.say(&ToManager::Recalled {
                frame,
                first,
                count,
            });
        }
        slot.answer(execute);
    });
}

#[test]
fn leases_that_it_does_not_hold_are_not_released() {
    assert_ignored(|slot, execute| {
        for frame in [execute.frame, execute.frame + 1, 0, u64::MAX, execute.frame] {
            slot.say(&ToManager::Released {
                frame,
                busy: u64::MAX,
            });
        }
        slot.answer(execute);
    });
}

#[test]
fn absurd_times_do_no_harm() {
    assert_ignored(|slot, execute| {
        let ToManager::Results {
            frame,
            first,
            reached,
            count,
            records,
            ..
        } = slot.honest(execute, execute.first, execute.count)
        else {
            return;
        };
        slot.say(&ToManager::Results {
            frame,
            first,
            reached,
            count,
            busy: u64::MAX,
            records,
        });
    });
}

#[test]
fn saying_ready_again_changes_nothing() {
    assert_ignored(|slot, execute| {
        let lacks = vec!["everything".to_owned()];
        slot.say(&ToManager::Ready { lacks: Vec::new() });
        slot.say(&ToManager::Ready { lacks });
        slot.answer(execute);
        slot.say(&ToManager::Ready { lacks: Vec::new() });
    });
}

#[test]
fn an_initializer_that_nobody_has_changes_nothing() {
    assert_ignored(|slot, execute| {
        slot.say(&ToManager::Initialized {
            error: Bytes::from_static(b"ValueError: no"),
        });
        slot.answer(execute);
    });
}

fn fetch(digest: Digest) -> ToManager {
    ToManager::Fetch {
        digest,
        offset: 0,
        bytes: PIECE_BYTES_MAX,
    }
}

#[test]
fn shared_contents_that_nobody_has_change_nothing() {
    assert_ignored(|slot, execute| {
        slot.say(&fetch([9; 32]));
        slot.say(&fetch(SHARED));
        slot.answer(execute);
    });
}

#[test]
fn who_asks_for_more_shared_contents_than_it_reads_is_dismissed() {
    assert_dismissed(|slot, _| {
        // It deals with none of them, however fast it could.
        slot.keeps_credit.set(true);
        (0..6000).for_each(|_| slot.say(&fetch(SHARED)));
    });
}

#[test]
fn output_of_any_bytes_is_text_with_its_workers_name() {
    let outcome = outcomes(
        |slot, execute| {
            let text = Bytes::from_static(b"\xff\xfe \x1b[2J\x1b[31m\nnext\n");
            slot.say(&ToManager::Output { stream: 2, text });
            slot.answer(execute);
        },
        1,
    );
    let printed = |notice: &Notice| matches!(notice, Notice::Output(output) if output.worker == "evil" && output.stream == 2);
    let printed = outcome.notices.iter().find(|notice| printed(notice));
    let Some(Notice::Output(output)) = printed else {
        panic!("{:?}", outcome.notices);
    };
    // Nothing says that its answers may be pickles, so its colours aren't obeyed either.
    assert_eq!(
        output.text.lines(output.colours),
        "\u{fffd}\u{fffd} \\u{1b}[2J\\u{1b}[31m\nnext\n"
    );
}

#[test]
fn replies_to_nothing_do_no_harm() {
    assert_ignored(|slot, execute| {
        let tasks = slot.tasks.get().unwrap();
        for kind in [MessageKind::Reply(7), MessageKind::Failure(7)] {
            slot.raw(tasks, 0, kind, Bytes::from_static(&[0xff; 40]), Vec::new());
        }
        slot.answer(execute);
    });
}

#[test]
fn messages_against_a_links_direction_end_the_session() {
    // The session would not send it, so another link is opened to where nobody listens.
    assert_ignored(|slot, execute| {
        let open = |session: &mut exoskel_link::Session| {
            session.open_link("no such endpoint", TrafficClass::Code)
        };
        if let Ok(link) = slot.connection.with(open) {
            slot.raw(
                link,
                0,
                MessageKind::Request(1),
                Bytes::from_static(b"hello"),
                Vec::new(),
            );
        }
        slot.answer(execute);
    });
}

/// It breaks the rules, then neither reads the manager's Close nor answers it, and keeps its heart beating.
#[test]
fn a_slot_that_will_not_go_is_cut_off() {
    assert_dismissed(|slot, _| {
        let malformed = Bytes::from_static(b"short");
        slot.raw(slot.results, 0, MessageKind::Post, malformed, Vec::new());
        let transport = slot.connection.transport();
        let mut sink = [0; 4096];
        loop {
            // Sends a heartbeat when one is due.
            slot.connection.flush();
            match transport.read_vectored(&mut [IoSliceMut::new(&mut sink)]) {
                Ok(1..) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return,
            }
        }
    });
}

#[test]
fn a_slot_that_hangs_up_costs_nobody_a_result() {
    assert_dismissed(|slot, _| {
        slot.connection.close(exoskel_link::CloseReason::Finished);
    });
    let ends_in_the_middle: Strike = |slot, execute| {
        let half = execute.count.div_ceil(2);
        slot.say(&slot.honest(execute, execute.first, half));
        slot.connection
            .close(exoskel_link::CloseReason::ShuttingDown);
    };
    assert_told(ends_in_the_middle, "evil at 127.0.0.1 has ended a slot");
}

/// The manager's user may be busy elsewhere for long; what workers print then must not pile up in memory.
#[test]
fn a_flood_of_output_is_cut() {
    let outcome = outcomes(
        |slot, execute| {
            for _ in 0..160 {
                let text = Bytes::from(vec![b'x'; 1 << 18]);
                slot.say(&ToManager::Output { stream: 0, text });
            }
            slot.answer(execute);
        },
        1,
    );
    let printed = outcome.notices.iter().filter_map(|notice| match notice {
        Notice::Output(output) => Some(output.text.raw_for_comparison().len()),
        _ => None,
    });
    let printed: usize = printed.sum();
    assert!(printed > 0 && printed <= 16 << 20, "{printed}");
}

/// It has a few small items, and one message of it announces 256 MiB.
#[test]
fn more_than_was_asked_for_ends_the_session_before_it_takes_memory() {
    for is_output in [false, true] {
        let strike: Strike = if is_output {
            |slot, _| {
                let text = Bytes::from(vec![b'x'; 256 << 20]);
                slot.say(&ToManager::Output { stream: 0, text });
            }
        } else {
            |slot, execute| {
                let part = Bytes::from(vec![0; 64 << 20]);
                let results = slot.honest(execute, execute.first, execute.count);
                slot.say_with(&results, vec![part; 4]);
            }
        };
        let outcome = outcomes(strike, 1);
        let told = |notice: &Notice| matches!(notice, Notice::Warning(text) if text.contains("exceeded what is expected of it now"));
        assert!(outcome.notices.iter().any(told), "{:?}", outcome.notices);
    }
}
