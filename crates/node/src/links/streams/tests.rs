//! Two ends of a stream that play against each other, and peers that break the rules.

use std::collections::VecDeque;

use exoskel_determinism::SplitMix64;

use super::*;

/// Two ends, with requests and answers that are under way.
struct Pair {
    opener: LinkStreamEnd<u64>,
    acceptor: Option<LinkStreamEnd<u64>>,
    calls_made: u64,
    asked: VecDeque<(u64, StreamMessage, Vec<Vec<u8>>)>,
    answers: VecDeque<(u64, RequestAnswer)>,
    waiting: Vec<(u64, StreamMessage)>,
}

impl Pair {
    fn new() -> Self {
        Self {
            opener: LinkStreamEnd::opener(),
            acceptor: None,
            calls_made: 0,
            asked: VecDeque::new(),
            answers: VecDeque::new(),
            waiting: Vec::new(),
        }
    }

    fn collect(&mut self) {
        for action in self.opener.take_actions() {
            self.calls_made += 1;
            let number = self.calls_made;
            let (message, bulk) = match action {
                StreamAction::Ask(message, piece) => {
                    self.waiting.push((number, message.clone()));
                    (message, piece.iter().map(|piece| piece.to_vec()).collect())
                }
                StreamAction::Tell(message) => (message, Vec::new()),
                StreamAction::Answer(..) => unreachable!("nobody asks an opener"),
            };
            let (stream, message) = StreamMessage::read(&message.head(7)).expect("it reads");
            assert_eq!(stream, 7);
            self.asked.push_back((number, message, bulk));
        }
        let Some(acceptor) = &mut self.acceptor else {
            return;
        };
        for action in acceptor.take_actions() {
            let StreamAction::Answer(call, contents, is_failure) = action else {
                unreachable!("an acceptor only answers");
            };
            let (head, bulk) = (contents.head, contents.bulk);
            let answer = if is_failure {
                RequestAnswer::Failure { head }
            } else {
                let bulk = bulk.iter().map(|part| part.to_vec()).collect();
                RequestAnswer::Reply { head, bulk }
            };
            self.answers.push_back((call, answer));
        }
    }

    fn deliver_request(&mut self) {
        let Some((number, message, bulk)) = self.asked.pop_front() else {
            return;
        };
        match &mut self.acceptor {
            None => {
                assert_eq!(message, StreamMessage::Open);
                self.acceptor = Some(LinkStreamEnd::acceptor(number));
            }
            Some(acceptor) => acceptor.asked(number, message, bulk),
        }
    }

    fn deliver_answer(&mut self) {
        if let Some((number, answer)) = self.answers.pop_front()
            && let Some(place) = self.waiting.iter().position(|(one, _)| *one == number)
        {
            let (_, asked) = self.waiting.remove(place);
            self.opener.answered(&asked, answer);
        }
    }

    fn settle(&mut self) {
        loop {
            self.collect();
            if self.asked.is_empty() && self.answers.is_empty() {
                return;
            }
            self.deliver_request();
            self.deliver_answer();
        }
    }
}

/// What one end writes and the other reads.
#[derive(Default)]
struct Traffic {
    written: usize,
    read: usize,
}

fn byte(place: usize) -> u8 {
    (place * 7 + place / 251) as u8
}

impl Traffic {
    fn write(&mut self, end: &mut LinkStreamEnd<u64>, total: usize, random: &mut SplitMix64) {
        let count = (random.below(300_000) as usize).min(total - self.written);
        let bytes: Vec<u8> = (self.written..self.written + count).map(byte).collect();
        self.written += end.write(&bytes).expect("it can be written");
        if self.written == total {
            end.finish();
        }
    }

    fn read(&mut self, end: &mut LinkStreamEnd<u64>, random: &mut SplitMix64) {
        let mut buffer = vec![0; random.below(200_000) as usize];
        let count = end.read(&mut buffer).expect("it can be read").unwrap_or(0);
        for (offset, &got) in buffer[..count].iter().enumerate() {
            assert_eq!(got, byte(self.read + offset));
        }
        self.read += count;
    }
}

#[test]
fn everything_comes_over_once_and_in_order_whoever_is_slow() {
    for seed in 0..40 {
        let mut random = SplitMix64::new(seed);
        let mut pair = Pair::new();
        let totals = [
            random.below(3_000_000) as usize,
            random.below(3_000_000) as usize,
        ];
        let (mut there, mut back) = (Traffic::default(), Traffic::default());
        for step in 0.. {
            assert!(step < 100_000, "seed {seed} makes no progress");
            match random.below(7) {
                0 if there.written < totals[0] => {
                    there.write(&mut pair.opener, totals[0], &mut random);
                }
                0 => pair.opener.finish(),
                1 => back.read(&mut pair.opener, &mut random),
                2 => {
                    if let Some(acceptor) = &mut pair.acceptor {
                        if back.written < totals[1] {
                            back.write(acceptor, totals[1], &mut random);
                        } else {
                            acceptor.finish();
                        }
                    }
                }
                3 => {
                    if let Some(acceptor) = &mut pair.acceptor {
                        there.read(acceptor, &mut random);
                    }
                }
                4 => pair.collect(),
                5 => pair.deliver_request(),
                _ => pair.deliver_answer(),
            }
            let kept = pair.acceptor.iter().map(|end| end.incoming.len()).max();
            assert!(kept.unwrap_or(0) <= STREAM_PIECES_MAX);
            assert!(pair.opener.incoming.len() <= STREAM_PIECES_MAX);
            let is_done = pair.opener.is_at_end()
                && pair.acceptor.as_ref().is_some_and(LinkStreamEnd::is_at_end);
            if is_done {
                break;
            }
        }
        assert_eq!([there.read, back.read], totals, "seed {seed}");
        pair.opener.stop();
        let acceptor = pair.acceptor.as_mut().expect("it is open");
        acceptor.stop();
        pair.settle();
        assert!(
            pair.opener.is_over() && pair.acceptor.as_ref().is_some_and(LinkStreamEnd::is_over)
        );
    }
}

#[test]
fn who_reads_no_more_stops_the_writer() {
    let mut pair = Pair::new();
    pair.opener.write(&[1; 500_000]).expect("there is room");
    pair.settle();
    let acceptor = pair.acceptor.as_mut().expect("it is open");
    acceptor.write(&[2; 900_000]).expect("there is room");
    acceptor.stop();
    pair.settle();
    assert_eq!(pair.opener.write(&[1]), Err(StreamFault::Stopped));
    pair.opener.stop();
    pair.settle();
    let acceptor = pair.acceptor.as_mut().expect("it is open");
    assert_eq!(acceptor.write(&[1]), Err(StreamFault::Stopped));
}

#[test]
fn a_failure_is_told_to_the_other_end_behind_what_was_sent() {
    let failure = PeerFailure::new("ValueError", "no such file");
    let mut pair = Pair::new();
    pair.settle();
    let acceptor = pair.acceptor.as_mut().expect("it is open");
    acceptor.write(b"beginning").expect("there is room");
    pair.settle();
    let acceptor = pair.acceptor.as_mut().expect("it is open");
    acceptor.write(b" and more").expect("there is room");
    acceptor.fail(&failure);
    pair.settle();
    let mut buffer = [0; 20];
    assert_eq!(pair.opener.read(&mut buffer), Ok(Some(18)));
    assert_eq!(
        pair.opener.read(&mut buffer),
        Err(StreamFault::Failed(failure.clone()))
    );
    assert!(pair.acceptor.as_ref().is_some_and(LinkStreamEnd::is_over));

    let mut pair = Pair::new();
    pair.settle();
    pair.opener.fail(&failure);
    pair.settle();
    let acceptor = pair.acceptor.as_mut().expect("it is open");
    assert_eq!(
        acceptor.read(&mut buffer),
        Err(StreamFault::Failed(failure))
    );
}

/// Whatever has been written, read and closed by then, and whenever it fails.
#[test]
fn an_opener_that_closes_hears_how_the_other_end_has_ended() {
    let failure = PeerFailure::new("OSError", "disk full");
    for seed in 0..400 {
        let mut random = SplitMix64::new(seed);
        let mut pair = Pair::new();
        let (fails, total) = (seed % 2 == 0, random.below(1_000_000) as usize);
        let mut there = Traffic::default();
        let (mut is_closed, mut has_ended) = (false, false);
        let mut room = vec![0; 200_000];
        while !(is_closed && has_ended) {
            match random.below(8) {
                0 if there.written < total && pair.opener.fault().is_none() => {
                    let bytes: Vec<u8> = (there.written..total).map(byte).collect();
                    there.written += pair.opener.write(&bytes).unwrap_or(bytes.len());
                }
                1 if there.written == total || pair.opener.fault().is_some() => {
                    pair.opener.finish();
                    pair.opener.stop();
                    is_closed = true;
                }
                2 => pair.collect(),
                3 => pair.deliver_request(),
                4 => pair.deliver_answer(),
                5 => {
                    let _ = pair.opener.read(&mut room);
                }
                number => {
                    let Some(acceptor) = &mut pair.acceptor else {
                        continue;
                    };
                    // It writes now and then, ends one time in four, and reads otherwise.
                    match random.below(4) {
                        _ if number == 6 => drop(acceptor.read(&mut room)),
                        0 if fails => {
                            acceptor.fail(&failure);
                            has_ended = true;
                        }
                        0 => {
                            acceptor.finish();
                            acceptor.stop();
                            has_ended = true;
                        }
                        _ => drop(acceptor.write(&[1; 100])),
                    }
                }
            }
            assert!(
                has_ended || !pair.opener.is_flushed(),
                "seed {seed}: told too early"
            );
        }
        pair.settle();
        let expected = fails.then(|| StreamFault::Failed(failure.clone()));
        assert_eq!(pair.opener.fault(), expected.as_ref(), "seed {seed}");
        assert!(pair.opener.is_over(), "seed {seed}");
        assert!(pair.opener.is_flushed() || fails, "seed {seed}");
        let acceptor = pair.acceptor.as_ref();
        assert!(acceptor.is_some_and(LinkStreamEnd::is_over), "seed {seed}");
    }
}

#[test]
fn who_stops_reading_hears_nothing_of_a_writer_that_has_noticed() {
    let mut pair = Pair::new();
    pair.opener.finish();
    pair.opener.stop();
    pair.settle();
    let acceptor = pair.acceptor.as_mut().expect("it is open");
    assert_eq!(acceptor.write(&[1]), Err(StreamFault::Stopped));
    acceptor.fail(&PeerFailure::new(WRITES_IN_VAIN, "nobody reads"));
    pair.settle();
    assert!(pair.opener.fault().is_none() && pair.opener.is_flushed());
}

fn failure_of(end: &mut LinkStreamEnd<u64>) -> String {
    let actions = end.take_actions().into_iter();
    let failures: Vec<String> = actions
        .filter_map(|action| match action {
            StreamAction::Answer(_, contents, true) => Some(PeerFailure::read(&contents.head).text),
            _ => None,
        })
        .collect();
    failures.last().cloned().unwrap_or_default()
}

#[test]
fn an_opener_that_breaks_the_rules_ends_its_stream() {
    let piece = |number| StreamMessage::Piece { number };
    let mut end = LinkStreamEnd::acceptor(0);
    for number in 0..STREAM_PIECES_MAX as u64 {
        end.asked(number, piece(number), vec![vec![1]]);
    }
    assert_eq!(failure_of(&mut end), "");
    end.asked(99, piece(8), vec![vec![1]]);
    assert!(failure_of(&mut end).contains("more than 8 pieces"));
    assert!(matches!(end.fault(), Some(StreamFault::Broken(_))));

    let mut end = LinkStreamEnd::acceptor(0);
    for number in 0..=STREAM_PIECES_MAX as u64 {
        end.asked(number, StreamMessage::Pull { number }, Vec::new());
    }
    assert!(failure_of(&mut end).contains("pull"));

    let cases: [(StreamMessage, Vec<Vec<u8>>, &str); 6] = [
        (piece(1), vec![vec![1]], "not the next one"),
        (piece(0), vec![], "0 parts"),
        (piece(0), vec![vec![]], "0 bytes"),
        (
            piece(0),
            vec![vec![0; STREAM_PIECE_BYTES_MAX + 1]],
            "131073 bytes",
        ),
        (piece(0), vec![vec![1], vec![1]], "2 parts"),
        (StreamMessage::Open, vec![], "second time"),
    ];
    for (message, bulk, shown) in cases {
        let mut end = LinkStreamEnd::acceptor(0);
        end.asked(1, message, bulk);
        let told = failure_of(&mut end);
        assert!(told.contains(shown), "{told}");
    }
    let mut end = LinkStreamEnd::acceptor(0);
    end.asked(1, StreamMessage::Finish, vec![]);
    end.asked(2, piece(0), vec![vec![1]]);
    assert!(failure_of(&mut end).contains("not the next one"));
}

#[test]
fn an_acceptor_that_breaks_the_rules_ends_the_stream() {
    let reply = |bulk: Vec<Vec<u8>>, answer: StreamAnswer| RequestAnswer::Reply {
        head: answer.contents(Bytes::new()).head,
        bulk,
    };
    let pull = |number| StreamMessage::Pull { number };
    let cases = [
        (pull(1), reply(vec![vec![1]], StreamAnswer::Done), "order"),
        (pull(0), reply(vec![], StreamAnswer::Done), "0 bytes"),
        (
            pull(0),
            reply(
                vec![vec![0; STREAM_PIECE_BYTES_MAX + 1]],
                StreamAnswer::Done,
            ),
            "131073",
        ),
        (
            pull(0),
            reply(vec![vec![1], vec![1]], StreamAnswer::End),
            "2 parts",
        ),
        (
            pull(0),
            RequestAnswer::Reply {
                head: Bytes::from_static(b"\x80"),
                bulk: vec![],
            },
            "none of a stream's",
        ),
    ];
    for (asked, answer, shown) in cases {
        let mut end: LinkStreamEnd<u64> = LinkStreamEnd::opener();
        end.take_actions();
        end.answered(&asked, answer);
        let mut buffer = [0; 1];
        let error = end.read(&mut buffer).expect_err("the stream has ended");
        assert!(error.to_string().contains(shown), "{error}");
    }
}

#[test]
fn only_what_is_written_reads() {
    let messages = [
        StreamMessage::Open,
        StreamMessage::Piece { number: 3 },
        StreamMessage::Pull { number: u64::MAX },
        StreamMessage::Finish,
        StreamMessage::Stop,
        StreamMessage::Fail(PeerFailure::new("ValueError", "why")),
    ];
    for message in messages {
        let head = message.head(5);
        assert_eq!(StreamMessage::read(&head), Some((5, message)));
        for cut in 0..head.len() {
            assert_eq!(StreamMessage::read(&head[..cut]), None);
        }
        let longer = [&head[..], b"x"].concat();
        assert_eq!(StreamMessage::read(&longer), None);
    }
    let mut random = SplitMix64::new(1);
    for _ in 0..20_000 {
        let length = random.below(40) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next_u64() as u8).collect();
        if let Some(first) = bytes.first_mut() {
            *first = 0xff;
        }
        // It may read; it may not panic.
        if let Some((stream, message)) = StreamMessage::read(&bytes) {
            assert_eq!(message.head(stream), bytes);
        }
    }
}
