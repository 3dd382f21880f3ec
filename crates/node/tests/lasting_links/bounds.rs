//! How much is kept for peers that no session carries, at most.

use std::collections::BTreeMap;

use exoskel_node::links::{AWAY_BYTES_MAX, AWAY_LINKS_MAX};

use super::*;

/// A node that opens as many links as can be kept and leaves pushes out its own, whatever process numbers it states.
#[test]
fn nobody_pushes_out_the_links_of_others() {
    let mut site = Site::new();
    let key = site.with_a_lost_link();
    let crowd = named("crowd.example.org");
    let mut name = 0;
    while name <= AWAY_LINKS_MAX as u64 {
        let process = ProcessNumber::new([(100 + name / 256) as u8; 16]);
        let mut conversation = site.met(&crowd, process, 30, false);
        for _ in 0..256 {
            name += 1;
            let opened = site.open(&mut conversation, |_, _| LinkLife::Lasting { name });
            opened.unwrap();
        }
        let over = site.lose_at(&conversation, Duration::from_secs(1));
        let mut over = over.iter();
        let is_over = over.any(|one| matches!(one, Happening::LinkOver(..)));
        assert_eq!(is_over, name >= AWAY_LINKS_MAX as u64);
    }
    let mut second = site.dialled_by(THEIRS, 11);
    let resumed = site.open(&mut second, |binding, link| resumed(&key, binding, link, 0));
    assert!(resumed.is_ok(), "{resumed:?}");
}

/// What is answered while no session carries a link is kept within the same limit.
#[test]
fn answers_that_wait_for_a_session_are_bounded() {
    let mut site = Site::new();
    let mut calls = Vec::new();
    for process in [THEIRS, SIBLINGS] {
        let mut conversation = site.dialled_by(process, 10);
        let opened = site.open(&mut conversation, |_, _| LinkLife::Lasting { name: 5 });
        let (link, _) = opened.unwrap();
        for number in 1..=8 {
            let asked = Message {
                kind: MessageKind::Request(number),
                ..post(b"?")
            };
            conversation.peer.send(link, asked).unwrap();
        }
        site.settle(&mut conversation);
        calls.append(&mut site.calls);
        site.lose(&conversation);
    }
    let contents = MessageContents {
        head: Bytes::new(),
        bulk: vec![vec![0; AWAY_BYTES_MAX as usize / 10].into()],
        is_gathered: false,
    };
    for call in &calls {
        let sent = site.machine.answer(call, contents.clone(), false);
        assert!(sent.is_none());
        let over = site.machine.give_up(Duration::ZERO);
        site.happened(over);
        let kept: BTreeMap<_, _> = calls
            .iter()
            .map(|call| {
                let accepted = call.accepted;
                (accepted, site.machine.unsent_bytes(accepted))
            })
            .collect();
        assert!(kept.values().sum::<u64>() <= AWAY_BYTES_MAX, "{kept:?}");
    }
}

/// A small call takes more memory than it counts on the wire.
#[test]
fn small_calls_that_wait_for_a_session_are_bounded_by_what_they_take() {
    let mut site = Site::new();
    let mut conversation = site.dialled_by(THEIRS, 10);
    let opened = site.open(&mut conversation, |_, _| LinkLife::Lasting { name: 5 });
    let (link, _) = opened.unwrap();
    conversation.peer.send(link, post(b"")).unwrap();
    site.settle(&mut conversation);
    let first = site.calls[0].clone();
    for _ in 0..AWAY_BYTES_MAX / first.weight() {
        let event = Event::Message {
            link,
            handler: 0,
            kind: MessageKind::Post,
            head: Bytes::new(),
            bulk: Vec::new(),
            size: first.size,
        };
        let (id, own) = (conversation.id, &mut conversation.own);
        let policy = |_: &str| Protection::Plain;
        site.machine
            .event(id, own, event, &policy, NOW, Duration::ZERO)
            .unwrap();
    }
    site.lose(&conversation);
    assert!(!site.machine.is_kept(first.accepted));
}

/// Links that are closed before their calls are handled are bounded, and those whose calls are handled leave nothing behind.
#[test]
fn closed_links_whose_calls_wait_are_bounded() {
    for is_handled in [true, false] {
        let mut site = Site::new();
        let mut conversation = site.dialled_by(THEIRS, 10);
        let mut ended = None;
        for name in 0..2 * AWAY_LINKS_MAX as u64 {
            let opened = site.open(&mut conversation, |_, _| LinkLife::Lasting { name });
            let (link, _) = opened.unwrap();
            conversation.peer.send(link, post(b"news")).unwrap();
            conversation.peer.close_link(link).unwrap();
            pass(&mut conversation.peer, &mut conversation.own);
            while let Some(event) = conversation.own.poll_event() {
                let policy = |_: &str| Protection::Plain;
                let (id, own) = (conversation.id, &mut conversation.own);
                match site
                    .machine
                    .event(id, own, event, &policy, NOW, Duration::ZERO)
                {
                    Ok(happened) => site.happened(happened),
                    Err(error) => ended = Some((name, error)),
                }
            }
            if ended.is_some() {
                break;
            }
            pass(&mut conversation.own, &mut conversation.peer);
            if is_handled {
                for call in std::mem::take(&mut site.calls) {
                    assert_eq!(site.machine.handled(&call), None);
                }
            }
        }
        if is_handled {
            assert!(ended.is_none(), "{ended:?}");
        } else {
            let (name, error) = ended.unwrap();
            assert_eq!(name, AWAY_LINKS_MAX as u64, "{error}");
        }
    }
}
