//! Streams and regions of Rust programs, and peers who ask for what they may not have.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod wire;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use exoskel_identity::Role;
use exoskel_link::Protection;
use exoskel_link::capability::Caveat;
use exoskel_net::links::{
    ArrayMemory, ArrayPart, BindingId, Compression, LinkNode, LinkNodeConfig, LinkStream,
    MessageContents, PeerFailure, RegionLayout, RequestAnswer, StreamFault, TransferError,
};
use exoskel_net::listening::Listening;
use exoskel_node::links::{
    REGION_PIECE_BYTES_MAX, RegionMessage, STREAM_PIECES_MAX, StreamMessage,
};

use wire::{Site, terms, with_policy};

const PATIENCE: Duration = Duration::from_secs(20);
const ENDPOINT: &str = "station";

/// An array that both the test and the node have.
#[derive(Clone)]
struct Cells(Arc<Mutex<Vec<u8>>>);

impl Cells {
    fn new(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(bytes)))
    }

    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl ArrayMemory for Cells {
    fn length(&self) -> usize {
        self.0.lock().unwrap().len()
    }

    fn append_to(&self, offset: usize, length: usize, bytes: &mut Vec<u8>) {
        bytes.extend_from_slice(&self.0.lock().unwrap()[offset..offset + length]);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        self.0.lock().unwrap()[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

/// Two nodes, and a binding of one to the other's endpoint.
struct Pair {
    owner: LinkNode,
    user: LinkNode,
    binding: BindingId,
    cells: Cells,
}

impl Pair {
    fn new() -> Self {
        Self::with_wire("encrypted")
    }

    fn with_wire(protection: &str) -> Self {
        let site = Site::new();
        let policy = format!(
            "[domain.here]\naddresses = [\"127.0.0.0/8\"]\nnames = [\"*\"]\n\n\
             [[rule]]\nfrom = \"here\"\nto = \"here\"\nprotection = \"{protection}\"\n"
        );
        let node = |name: &str, listen: Vec<Listening>| {
            let terms = terms(site.credential(Role::Peer, name), &[Role::Peer]);
            let mut terms = with_policy(terms, &policy);
            terms.asks_for_each_link = true;
            LinkNode::start(LinkNodeConfig {
                terms,
                renewal: None,
                listen,
                gateways: Vec::new(),
                hints: Vec::new(),
                patience: PATIENCE,
                via: Vec::new(),
                dialler: None,
                status: None,
            })
            .unwrap()
        };
        let listening = Listening::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let (owner, user) = (
            node("ocean", vec![listening]),
            node("atmosphere", Vec::new()),
        );
        owner
            .offer(ENDPOINT, Protection::Plain, [1; 16], [2; 32])
            .unwrap();
        let cells = Cells::new((0..100).collect());
        owner.add_handler(ENDPOINT, "call").unwrap();
        owner.add_stream(ENDPOINT, "stream").unwrap();
        let layout = RegionLayout {
            type_text: "|u1".to_owned(),
            item_bytes: 1,
            shape: vec![10, 10],
        };
        let memory = Box::new(cells.clone());
        owner
            .add_region(ENDPOINT, "field", layout, memory, true)
            .unwrap();
        let caveats = vec![Caveat::holder("atmosphere").unwrap()];
        let startpoint = owner.startpoint(ENDPOINT, false, caveats).unwrap();
        let binding = user.bind(startpoint);
        Self {
            owner,
            user,
            binding,
            cells,
        }
    }

    fn request(&self, handler: &str, head: Bytes, bulk: Vec<Bytes>) -> u64 {
        let contents = MessageContents {
            head,
            bulk,
            is_gathered: false,
        };
        self.user.request(self.binding, handler, contents).unwrap()
    }

    fn answer(&self, request: u64) -> Result<Vec<Vec<u8>>, String> {
        match self.user.wait(self.binding, request, PATIENCE).unwrap() {
            RequestAnswer::Reply { bulk, .. } => Ok(bulk),
            RequestAnswer::Failure { head } => Err(PeerFailure::read(&head).text),
            RequestAnswer::Lost(error) => Err(format!("lost: {error}")),
        }
    }

    fn ask(&self, handler: &str, head: Bytes, bulk: Vec<Bytes>) -> Result<Vec<Vec<u8>>, String> {
        self.answer(self.request(handler, head, bulk))
    }

    fn refused(&self, handler: &str, head: Bytes, bulk: Vec<Bytes>, shown: &str) {
        let text = self.ask(handler, head, bulk).unwrap_err();
        assert!(text.contains(shown), "{text}");
    }

    fn close(&self) {
        self.user.close();
        self.owner.close();
    }
}

fn read_to_end(stream: &LinkStream) -> Result<Vec<u8>, StreamFault> {
    let (mut read, mut buffer) = (Vec::new(), vec![0; 100_000]);
    while let Some(count) = stream.read(&mut buffer, PATIENCE)? {
        if count == 0 {
            return Ok(read);
        }
        read.extend_from_slice(&buffer[..count]);
    }
    panic!("nothing came")
}

fn write_all(stream: &LinkStream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let count = stream.write(bytes, PATIENCE).unwrap().unwrap();
        bytes = &bytes[count..];
    }
}

#[test]
fn a_stream_carries_bytes_both_ways() {
    let pair = Pair::new();
    let sent: Vec<u8> = (0..3_000_000_u32).map(|place| (place / 7) as u8).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let accepted = pair.owner.take_stream(ENDPOINT, PATIENCE).unwrap();
            assert_eq!(
                (&*accepted.handler, &*accepted.peer),
                ("stream", "atmosphere")
            );
            let got = read_to_end(&accepted.stream).unwrap();
            write_all(&accepted.stream, &got);
            accepted.stream.close();
        });
        let stream = pair.user.open_stream(pair.binding, "stream").unwrap();
        write_all(&stream, &sent);
        stream.finish();
        assert!(read_to_end(&stream).unwrap() == sent);
        assert!(stream.flushed(PATIENCE).unwrap());
        stream.close();
    });
    pair.close();
}

#[test]
fn a_region_is_read_and_written() {
    let pair = Pair::new();
    let into = Cells::new(vec![0; 6]);
    let part = ArrayPart::new(11, 1, &[(2, 10), (3, 1)]).unwrap();
    let get = pair
        .user
        .get_region(pair.binding, "field", &part, Box::new(into.clone()))
        .unwrap();
    assert_eq!(get.wait(PATIENCE), Ok(true));
    assert_eq!(into.bytes(), [11, 12, 13, 21, 22, 23]);
    let from = Bytes::from_static(&[9; 6]);
    let put = pair
        .user
        .put_region(pair.binding, "field", &part, from)
        .unwrap();
    assert_eq!(put.wait(PATIENCE), Ok(true));
    assert_eq!(pair.cells.bytes()[10..15], [10, 9, 9, 9, 14]);
    let outside = ArrayPart::new(98, 1, &[(6, 1)]).unwrap();
    let get = pair
        .user
        .get_region(pair.binding, "field", &outside, Box::new(into))
        .unwrap();
    let error = get.wait(PATIENCE).unwrap_err();
    assert!(matches!(error, TransferError::Refused(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("ends at byte 104, expected at most 100")
    );
    pair.close();
}

#[test]
fn a_stream_that_sends_beyond_its_credit_is_ended() {
    let pair = Pair::new();
    let piece = || vec![Bytes::from_static(&[7; 1000])];
    pair.ask("stream", StreamMessage::Open.head(5), vec![])
        .unwrap();
    let requests: Vec<u64> = (0..=STREAM_PIECES_MAX as u64)
        .map(|number| pair.request("stream", StreamMessage::Piece { number }.head(5), piece()))
        .collect();
    for request in requests {
        let text = pair.answer(request).unwrap_err();
        assert!(
            text.contains("more than 8 pieces before any was read"),
            "{text}"
        );
    }
    let lines = pair.owner.take_audit();
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("ended a stream of peer atmosphere")),
        "{lines:?}"
    );
    // What it got before is read, and then that it broke the rules.
    let accepted = pair.owner.take_stream(ENDPOINT, PATIENCE).unwrap();
    let mut buffer = vec![0; 10_000];
    assert_eq!(accepted.stream.read(&mut buffer, PATIENCE), Ok(Some(8000)));
    assert!(matches!(
        accepted.stream.read(&mut buffer, PATIENCE),
        Err(StreamFault::Broken(_))
    ));
    // Its other streams and calls go on.
    pair.ask("stream", StreamMessage::Open.head(6), vec![])
        .unwrap();
    pair.close();
}

#[test]
fn what_is_no_message_of_a_stream_or_region_is_refused() {
    let pair = Pair::new();
    for head in [&b"\xff"[..], b"\xff\x09", b"\xff\x01\0", &[0xff; 300]] {
        let head = Bytes::copy_from_slice(head);
        pair.refused("stream", head.clone(), vec![], "none of a stream's");
        pair.refused("field.get", head.clone(), vec![], "none for field.get");
        pair.refused("field.put", head.clone(), vec![], "none for field.put");
        pair.refused("call", head, vec![], "call is a handler");
    }
    pair.refused(
        "stream",
        Bytes::from_static(b"\x80"),
        vec![],
        "stream is a stream",
    );
    pair.refused("field.put", Bytes::new(), vec![], "field.put is a region's");
    pair.close();
}

#[test]
fn a_region_is_held_to_its_array_and_its_rights() {
    let pair = Pair::new();
    let part = |offset, run, steps: &[(u64, u64)]| ArrayPart::new(offset, run, steps).unwrap();
    let outside = [
        part(0, 101, &[]),
        part(100, 1, &[]),
        part(u64::MAX, 1, &[]),
        part(0, 1, &[(2, u64::MAX)]),
        part(0, 1, &[(3, 50)]),
        part(90, 10, &[(2, 10)]),
    ];
    for part in outside {
        pair.refused(
            "field.get",
            RegionMessage::Get(part.clone()).head(),
            vec![],
            "ends at byte",
        );
        let bytes = vec![Bytes::from(vec![0; 20])];
        pair.refused(
            "field.put",
            RegionMessage::Put(part).head(),
            bytes,
            "ends at byte",
        );
    }
    // A few bytes that ask for very many.
    let again = part(0, 1, &[(REGION_PIECE_BYTES_MAX + 1, 0)]);
    pair.refused(
        "field.get",
        RegionMessage::Get(again).head(),
        vec![],
        "steps that overlap",
    );
    let nothing = part(0, 1, &[(0, 1)]);
    pair.refused(
        "field.get",
        RegionMessage::Get(nothing).head(),
        vec![],
        "part of 0 bytes",
    );
    let whole = part(0, 100, &[]);
    for bulk in [vec![], vec![0; 99], vec![0; 101]] {
        let put = RegionMessage::Put(whole.clone()).head();
        pair.refused(
            "field.put",
            put,
            vec![bulk.into()],
            "bytes for a part of 100",
        );
    }
    let halves = vec![Bytes::from(vec![0; 50]), Bytes::from(vec![0; 50])];
    let put = RegionMessage::Put(whole.clone()).head();
    pair.refused("field.put", put.clone(), halves, "2 parts");
    // Each name is a right of its own.
    pair.refused(
        "field.get",
        put,
        vec![Bytes::from(vec![0; 100])],
        "none for field.get",
    );
    let get = RegionMessage::Get(whole).head();
    pair.refused("field.put", get, vec![], "none for field.put");
    assert_eq!(pair.cells.bytes(), (0..100).collect::<Vec<u8>>());
    pair.close();
}

#[test]
fn a_function_is_no_region() {
    let pair = Pair::new();
    let (owner, user) = (&pair.owner, &pair.user);
    owner.add_handler(ENDPOINT, "array.get").unwrap();
    let into = Cells::new(vec![0; 10]);
    let part = ArrayPart::new(0, 10, &[]).unwrap();
    let get = user
        .get_region(pair.binding, "array", &part, Box::new(into.clone()))
        .unwrap();
    let error = get.wait(PATIENCE).unwrap_err();
    assert!(
        error.to_string().contains("array.get is a handler"),
        "{error}"
    );
    assert_eq!(into.bytes(), [0; 10]);
    pair.close();
}

/// An array that says when somebody begins to read it, and is read when the test lets it.
struct SlowCells {
    begun: Sender<()>,
    go: Mutex<Receiver<()>>,
    is_read: Arc<AtomicBool>,
}

impl ArrayMemory for SlowCells {
    fn length(&self) -> usize {
        10
    }

    fn append_to(&self, _: usize, length: usize, bytes: &mut Vec<u8>) {
        self.begun.send(()).unwrap();
        self.go.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        self.is_read.store(true, Ordering::SeqCst);
        bytes.extend(vec![7; length]);
    }

    fn write(&self, _: usize, _: &[u8]) {}
}

/// Aim: while an owner serves what has waited for its region, however long that takes, the node deals with all else.
#[test]
fn a_region_that_is_released_holds_up_nobody() {
    let pair = Pair::new();
    let ((begun, begins), (go, goes)) = (channel(), channel());
    let is_read = Arc::new(AtomicBool::new(false));
    let memory = SlowCells {
        begun,
        go: Mutex::new(goes),
        is_read: is_read.clone(),
    };
    let layout = RegionLayout {
        type_text: "|u1".to_owned(),
        item_bytes: 1,
        shape: vec![10],
    };
    let region = pair
        .owner
        .add_region(ENDPOINT, "slow", layout, Box::new(memory), false)
        .unwrap();
    let whole = RegionMessage::Get(ArrayPart::new(0, 10, &[]).unwrap());
    // What comes behind a get on its link has come when the get has.
    let get_and_call = || {
        let get = pair.request("slow.get", whole.head(), vec![]);
        let asked = pair.request("call", Bytes::from_static(b"\x80"), vec![]);
        let call = pair.owner.take_call(ENDPOINT, PATIENCE).unwrap();
        let nothing = MessageContents::default();
        pair.owner.handled(&call, nothing, false).unwrap();
        (get, asked)
    };
    assert!(region.hold(PATIENCE));
    let first = get_and_call();
    std::thread::scope(|scope| {
        let release = scope.spawn(|| region.release());
        begins.recv_timeout(PATIENCE).unwrap();
        let second = get_and_call();
        assert!(!is_read.load(Ordering::SeqCst));
        for _ in 0..2 {
            go.send(()).unwrap();
        }
        for (get, asked) in [first, second] {
            assert_eq!(pair.answer(get).unwrap(), [vec![7; 10]]);
            pair.answer(asked).unwrap();
        }
        release.join().unwrap();
    });
    // Nobody has it now.
    assert!(region.hold(PATIENCE));
    region.release();
    pair.close();
}

/// The bytes of an array on the wire, in both directions, for a call whose link is open.
fn sent(protection: &str, compression: Compression) -> (usize, usize) {
    let pair = Pair::with_wire(protection);
    pair.user
        .compress_binding(pair.binding, compression, |_, _, _| true);
    pair.owner
        .compress_endpoint(ENDPOINT, compression, |_, _, _| true);
    let contents = || MessageContents {
        head: Bytes::from_static(b"\x80"),
        bulk: vec![Bytes::from(vec![0; 100_000])],
        is_gathered: false,
    };
    let mut sizes = (0, 0);
    for _ in 0..2 {
        let request = pair.user.request(pair.binding, "call", contents()).unwrap();
        let call = pair.owner.take_call(ENDPOINT, PATIENCE).unwrap();
        let (head, bulk) = (call.head.clone(), call.bulk.clone());
        sizes.0 = bulk[0].len();
        let expanded = pair.owner.expanded(head, bulk).unwrap();
        assert_eq!(expanded.bulk, [vec![0; 100_000]]);
        pair.owner.handled(&call, contents(), false).unwrap();
        match pair.user.wait(pair.binding, request, PATIENCE).unwrap() {
            RequestAnswer::Reply { head, bulk } => {
                sizes.1 = bulk[0].len();
                assert_eq!(
                    pair.user.expanded(head, bulk).unwrap().bulk,
                    [vec![0; 100_000]]
                );
            }
            other => panic!("{other:?}"),
        }
    }
    pair.close();
    sizes
}

#[test]
fn only_what_may_be_is_compressed() {
    let whole = (100_000, 100_000);
    let is_small = |(there, back): (usize, usize)| there < 1000 && back < 1000;
    assert_eq!(sent("plain", Compression::Never), whole);
    assert!(is_small(sent("plain", Compression::UnlessEncrypted)));
    assert!(is_small(sent("integrity", Compression::UnlessEncrypted)));
    assert_eq!(sent("encrypted", Compression::UnlessEncrypted), whole);
    assert!(is_small(sent("encrypted", Compression::EvenEncrypted)));
}
