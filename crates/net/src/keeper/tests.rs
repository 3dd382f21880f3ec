//! Members that don't keep to the protocol: what the keeper holds for them, and what it doesn't.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use exoskel_transfer::{
    ATTACH_BYTES_MAX, AttachRequest, FrameReader, KeeperMessage, LayoutDescription, MemberMessage,
    Sharing, frame,
};

use super::member_socket::MemberSocket;
use super::*;

const TWO: &str = "[program.ocean]\n[program.atmosphere]\n[[connection]]\nfrom = \"ocean.sst\"\nto = \"atmosphere.sst\"";

/// A promise to whoever runs the tests: nothing here waits for ever.
const WAIT: Duration = Duration::from_secs(60);

/// A keeper in a folder that goes with it.
struct House {
    folder: PathBuf,
    place: PathBuf,
    keeper: KeeperService,
}

impl Drop for House {
    fn drop(&mut self) {
        self.keeper.end();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl House {
    fn new(waiting_bytes_max: usize) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("exoskel-keeper-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let place = folder.join("keeper");
        let coupling = Coupling::parse(TWO).unwrap();
        let keeper = Keeper::new(coupling.clone(), OWN_KEEPER, false);
        let coupler = Some(Coupler::new(coupling));
        let keeper = KeeperService::begin(&place, keeper, coupler, None, waiting_bytes_max);
        let keeper = keeper.unwrap();
        Self {
            folder,
            place,
            keeper,
        }
    }

    fn connect(&self) -> Stranger {
        let stream = UnixStream::connect(&self.place).unwrap();
        stream.set_read_timeout(Some(WAIT)).unwrap();
        stream.set_write_timeout(Some(WAIT)).unwrap();
        Stranger {
            stream,
            frames: FrameReader::default(),
        }
    }
}

/// Whoever has connected.
struct Stranger {
    stream: UnixStream,
    frames: FrameReader,
}

impl Stranger {
    /// What it is told next; none when the socket has ended.
    fn hear(&mut self) -> Option<KeeperMessage> {
        let mut bytes = [0; 4096];
        loop {
            if let Some(message) = self.frames.message().unwrap() {
                return Some(message);
            }
            match self.stream.read(&mut bytes) {
                Ok(0) => return None,
                Ok(count) => self.frames.take(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn refusal(&mut self) -> String {
        match self.hear() {
            Some(KeeperMessage::Refused { reason }) => reason,
            other => panic!("{other:?}"),
        }
    }
}

fn attach(program: &str, rank: u32, size: u32) -> Vec<u8> {
    let attach = MemberMessage::Attach(AttachRequest::new(program, rank, size));
    frame(&attach).unwrap()
}

fn array(name: &str) -> Vec<u8> {
    let array = MemberMessage::Array {
        name: name.to_owned(),
        layout: LayoutDescription {
            shape: vec![8],
            element: "<f8".to_owned(),
            sharing: vec![Sharing::Word("block".to_owned())],
            grid: vec![1],
            halo: vec![0],
            fortran: false,
        },
    };
    frame(&array).unwrap()
}

#[test]
fn who_was_refused_is_not_heard_any_more() {
    let house = House::new(WAITING_BYTES_MAX);
    let mut wrong = house.connect();
    // Both at once: the second one would make a member that has no socket.
    let bytes = [attach("sea", 0, 1), attach("ocean", 0, 1)].concat();
    wrong.stream.write_all(&bytes).unwrap();
    assert!(wrong.refusal().contains("\"sea\""));
    assert_eq!(wrong.hear(), None);
    let mut right = house.connect();
    right.stream.write_all(&attach("ocean", 0, 1)).unwrap();
    assert_eq!(right.hear(), Some(KeeperMessage::Attached));
    let refusals = house.keeper.report().refusals;
    assert!(
        matches!(refusals.as_slice(), [(program, reason)] if program == "sea" && reason.contains("expected one of")),
        "{refusals:?}"
    );
}

#[test]
fn a_stranger_says_little() {
    let house = House::new(WAITING_BYTES_MAX);
    let mut stranger = house.connect();
    let length = u32::try_from(ATTACH_BYTES_MAX + 1).unwrap();
    stranger.stream.write_all(&length.to_le_bytes()).unwrap();
    let reason = stranger.refusal();
    assert!(reason.contains("at most 4096"), "{reason}");
    assert_eq!(stranger.hear(), None);
    // Who has attached may say more, in the same breath too.
    let mut member = house.connect();
    let long = array(&"x".repeat(ATTACH_BYTES_MAX));
    let bytes = [attach("ocean", 0, 1), long].concat();
    member.stream.write_all(&bytes).unwrap();
    assert_eq!(member.hear(), Some(KeeperMessage::Attached));
    let reason = member.refusal();
    assert!(reason.contains("up to 64 letters"), "{reason}");
}

#[test]
fn who_reads_no_answers_is_let_go_of() {
    let house = House::new(64 * 1024);
    let mut deaf = house.connect();
    deaf.stream.write_all(&attach("ocean", 0, 1)).unwrap();
    assert_eq!(deaf.hear(), Some(KeeperMessage::Attached));
    let again = array("sst");
    // Each has an answer. The kernel keeps some for it, then the keeper, and then that is enough.
    let said = (0..1 << 20).find_map(|_| deaf.stream.write_all(&again).err());
    let said = said.expect("the keeper goes on listening");
    assert!(
        [io::ErrorKind::BrokenPipe, io::ErrorKind::ConnectionReset].contains(&said.kind()),
        "{said}"
    );
    let lost = house.keeper.report().first_lost.unwrap();
    assert_eq!(lost.why, "it doesn't read what it is told");
}

#[test]
fn a_talker_is_heard_in_turns() {
    let (mut talker, keeper) = UnixStream::pair().unwrap();
    keeper.set_nonblocking(true).unwrap();
    let mut socket = MemberSocket::new(keeper);
    let one = attach("ocean", 0, 1);
    let count = 100_000 / one.len();
    talker.write_all(&one.repeat(count)).unwrap();
    let mut heard = Vec::new();
    while heard.iter().sum::<usize>() < count {
        assert_eq!(socket.receive(), None);
        let messages = std::iter::from_fn(|| socket.message().unwrap());
        heard.push(messages.count());
    }
    // Others are heard between them.
    assert!(heard.len() > 1, "{heard:?}");
}
