use super::*;
use proptest::prelude::*;

#[test]
fn messages_read_back() {
    let execute = Execute {
        frame: 7,
        stream: 1,
        from: 2,
        to: 3,
        lease: Lease::PassedOn,
        grant: 65_536,
        first: 1 << 40,
        count: 3,
        state: GivenState::Kept(77),
        lists: true,
        records: Bytes::from_static(b"abc"),
    };
    let segment = |ending, steps: &[SegmentStep]| {
        let count = steps.iter().map(|step| step.functions()).sum();
        SegmentFunctions {
            serial: ending == SegmentEnding::Next,
            ending,
            for_user: steps.len() > 1,
            steps: steps.to_vec(),
            functions: (0..count).map(|number| [number as u8; 32]).collect(),
        }
    };
    let [calls, no_calls] = [true, false];
    let repeat = |at_most| SegmentEnding::Repeat { from: 2, at_most };
    let segments = vec![
        segment(SegmentEnding::Next, &[SegmentStep::Call, SegmentStep::Call]),
        segment(
            SegmentEnding::Expand { after: None },
            &[
                SegmentStep::Split { calls },
                SegmentStep::Split { calls: no_calls },
            ],
        ),
        segment(
            SegmentEnding::Expand { after: Some(7) },
            &[SegmentStep::Divide],
        ),
        segment(
            SegmentEnding::Expand { after: Some(7) },
            &[SegmentStep::Resume],
        ),
        segment(
            SegmentEnding::Expand { after: Some(7) },
            &[SegmentStep::Feedback],
        ),
        segment(
            repeat(None),
            &[
                SegmentStep::Join { calls },
                SegmentStep::Join { calls: no_calls },
            ],
        ),
        segment(repeat(Some(9)), &[SegmentStep::Until]),
        segment(
            SegmentEnding::Fold,
            &[
                SegmentStep::Fold,
                SegmentStep::Combine,
                SegmentStep::CombineInitial,
            ],
        ),
    ];
    let task = [
        ToSlot::Execute(execute),
        ToSlot::Recall { frame: 1, count: 2 },
        ToSlot::Grant { frame: 1, index: 2 },
        ToSlot::Interrupt { frame: 3, index: 4 },
        ToSlot::Forget { stream: 3 },
    ];
    for message in task {
        let (handler, head) = message.encode();
        assert_eq!(ToSlot::decode_task(handler, head), Ok(message));
    }
    let code = [
        ToSlot::Setup {
            answers: Format::Data,
            settings: Bytes::from_static(b"x"),
        },
        ToSlot::Setup {
            answers: Format::Pickle,
            settings: Bytes::new(),
        },
        ToSlot::Function {
            digest: [9; 32],
            pickle: Bytes::from_static(b"p"),
        },
        ToSlot::Define {
            stream: 4,
            first_stream: 3,
            call: Call::Arguments,
            rules: ItemRules::default(),
            segments: segments.clone(),
        },
        ToSlot::Define {
            stream: 4,
            first_stream: 4,
            call: Call::Item,
            rules: ItemRules {
                timeout: Some(Duration::from_millis(1500)),
                retries_on: Some([3; 32]),
            },
            segments,
        },
        ToSlot::Discard { digest: [7; 32] },
        ToSlot::Piece {
            digest: [5; 32],
            offset: 1 << 33,
        },
    ];
    for message in code {
        let (handler, head) = message.encode();
        assert_eq!(ToSlot::decode_code(handler, head), Ok(message));
    }
    let back = [
        ToManager::Expanded {
            frame: 1,
            first: 2,
            count: 3,
            busy: 4,
            lists: Bytes::from_static(b"lists"),
        },
        ToManager::Folded {
            frame: 1,
            first: 2,
            count: 3,
            busy: 4,
            record: Bytes::from_static(b"r"),
        },
        ToManager::Results {
            frame: 1,
            first: 2,
            reached: 3,
            count: 3,
            busy: 4,
            records: Bytes::from_static(b"r"),
        },
        ToManager::Released { frame: 5, busy: 6 },
        ToManager::Recalled {
            frame: 1,
            first: 2,
            count: 0,
        },
        ToManager::Announced {
            frame: 1,
            index: 2,
            count: 5,
            bytes: 3,
            busy: 4,
        },
        ToManager::Output {
            stream: 1,
            text: Bytes::from_static(b"hello"),
        },
        ToManager::Ready { lacks: Vec::new() },
        ToManager::Retriable {
            frame: 1,
            first: 2,
            count: 3,
            busy: 4,
            records: Bytes::from_static(b"r"),
        },
        ToManager::Ready {
            lacks: vec!["numpy".to_owned(), "größe".to_owned()],
        },
        ToManager::Initialized {
            error: Bytes::from_static(b"ValueError: no"),
        },
        ToManager::Fetch {
            digest: [7; 32],
            offset: 1 << 33,
            bytes: PIECE_BYTES_MAX,
        },
        ToManager::Leaving,
        ToManager::Differs {
            packages: vec!["numpy 1.26.4, not 2.1.0".to_owned()],
        },
        ToManager::Heard {
            workers: vec![HeardWorker {
                name: "lab1.example.org".to_owned(),
                addresses: vec!["192.0.2.1:7601".parse().unwrap()],
            }],
        },
    ];
    for message in back {
        let (handler, head) = message.encode();
        assert_eq!(ToManager::decode(handler, head), Ok(message));
    }
}

#[test]
fn what_a_worker_lacks_is_names_and_not_too_many() {
    for name in ["", "a b", "a\u{1b}[2J", "a.b", "a\n"] {
        let (handler, head) = ToManager::Ready {
            lacks: vec![name.to_owned()],
        }
        .encode();
        assert_eq!(
            ToManager::decode(handler, head),
            Err(MessageError("ready")),
            "{name:?}"
        );
    }
    let long = ToManager::Ready {
        lacks: vec!["\u{fc}".repeat(NAME_BYTES_MAX)],
    };
    let (handler, head) = long.encode();
    assert_eq!(head.len(), 2 + NAME_BYTES_MAX - 1, "whole characters");
    assert!(ToManager::decode(handler, head).is_ok());
    let mut longer = vec![b'x'; 2 + NAME_BYTES_MAX + 1];
    longer[..2].copy_from_slice(&256_u16.to_be_bytes());
    assert!(ToManager::decode(5, longer.into()).is_err());
    let lacks = vec!["x".to_owned(); NAMES_MAX + 1];
    let (handler, head) = ToManager::Ready { lacks }.encode();
    let mut more = head.to_vec();
    assert!(
        ToManager::decode(handler, head).is_ok(),
        "the first of them"
    );
    more.extend([0, 1, b'x']);
    assert!(ToManager::decode(handler, more.into()).is_err());
    for line in ["", "numpy\u{1b}[2J", "numpy 1\n"] {
        let packages = vec![line.to_owned()];
        let (handler, head) = ToManager::Differs { packages }.encode();
        let expected = Err(MessageError("differs"));
        assert_eq!(ToManager::decode(handler, head), expected, "{line:?}");
    }
}

#[test]
fn an_initializers_error_is_bounded_and_a_piece_too() {
    let error = Bytes::from(vec![b'x'; INITIALIZER_ERROR_BYTES_MAX + 1]);
    let (handler, head) = ToManager::Initialized { error }.encode();
    assert_eq!(head.len(), INITIALIZER_ERROR_BYTES_MAX, "its end");
    let longer = [&head[..], b"x"].concat();
    assert!(ToManager::decode(handler, head).is_ok());
    assert!(ToManager::decode(handler, longer.into()).is_err());
    for (bytes, is_read) in [(0, false), (1, true), (PIECE_BYTES_MAX + 1, false)] {
        let fetch = ToManager::Fetch {
            digest: [0; 32],
            offset: 0,
            bytes,
        };
        let (handler, head) = fetch.encode();
        assert_eq!(ToManager::decode(handler, head).is_ok(), is_read);
    }
}

#[test]
fn output_has_a_stream_that_there_is() {
    for (stream, is_read) in [(0, true), (2, true), (3, false), (200, false)] {
        let head = Bytes::copy_from_slice(&[stream, b'x']);
        assert_eq!(ToManager::decode(4, head).is_ok(), is_read, "{stream}");
    }
}

proptest! {
    /// Arbitrary heads are refused or read, never a panic.
    #[test]
    fn garbage_is_an_error(handler in 0_u16..8, head in proptest::collection::vec(any::<u8>(), 0..120)) {
        let head = Bytes::from(head);
        let _ = ToSlot::decode_task(handler, head.clone());
        let _ = ToSlot::decode_code(handler, head.clone());
        let _ = ToManager::decode(handler, head);
    }
}
