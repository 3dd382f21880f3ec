//! Members that don't keep to the protocol: what the keeper holds for them, and what it doesn't.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use exoskel_transfer::{
    ATTACH_BYTES_MAX, AttachRequest, FrameReader, HALF_FRAME_BYTES_OF_ONE, KeeperMessage,
    LayoutDescription, MemberMessage, Sharing, frame,
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
    fn new(limits: MemberLimits) -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let name = format!("exoskel-keeper-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let place = folder.join("keeper");
        let coupling = Coupling::parse(TWO).unwrap();
        let keeper = Keeper::new(coupling.clone(), OWN_KEEPER, false);
        let coupler = Some(Coupler::new(coupling));
        let keeper = KeeperService::begin(&place, keeper, coupler, None, limits);
        let keeper = keeper.unwrap();
        Self {
            folder,
            place,
            keeper,
        }
    }

    /// What its members have said of messages that are not whole, beyond what each may.
    fn half_frames(&self) -> usize {
        held(&self.keeper.driver.inside).half_frames.bytes()
    }

    fn until(&self, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(begin.elapsed() < WAIT, "{} bytes", self.half_frames());
            std::thread::yield_now();
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
    let house = House::new(MemberLimits::USUAL);
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
    let house = House::new(MemberLimits::USUAL);
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
    let house = House::new(MemberLimits {
        waiting_bytes_max: 64 * 1024,
        ..MemberLimits::USUAL
    });
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
    let mut socket = MemberSocket::new(keeper, Arc::new(HalfFrames::new(0)));
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

/// Aim: members can't have the keeper hold a long message each that never ends. Method: each of eight says nearly all of 1 MiB, where two
/// such are held; who goes over it is told no, and who says little is heard all the same.
#[test]
fn messages_that_never_end_are_bounded_for_all_members() {
    const LENGTH: usize = 1 << 20;
    let house = House::new(MemberLimits {
        half_frames_bytes_max: 2 * LENGTH,
        ..MemberLimits::USUAL
    });
    let most = [&(LENGTH as u32).to_le_bytes()[..], &vec![b' '; LENGTH - 1]].concat();
    let mut kept = Vec::new();
    let mut refused = 0;
    for rank in 0..8 {
        let mut member = house.connect();
        member.stream.write_all(&attach("ocean", rank, 9)).unwrap();
        assert_eq!(member.hear(), Some(KeeperMessage::Attached));
        let before = house.half_frames();
        // Who is refused finds its socket closed while it still talks.
        let _ = member.stream.write_all(&most);
        let beyond = most.len() - HALF_FRAME_BYTES_OF_ONE;
        if before + beyond <= 2 * LENGTH {
            house.until(|| house.half_frames() == before + beyond);
            kept.push(member);
        } else {
            refused += 1;
            let reason = member.refusal();
            assert!(reason.contains("of all its members"), "{reason}");
            assert!(reason.contains("expected at most 2097152"), "{reason}");
            house.until(|| house.half_frames() == before);
        }
    }
    assert_eq!((kept.len(), refused), (2, 6));
    let mut quiet = house.connect();
    let said = [attach("ocean", 8, 9), array("sst")].concat();
    let (begin, end) = said.split_at(said.len() - 1);
    quiet.stream.write_all(begin).unwrap();
    assert_eq!(quiet.hear(), Some(KeeperMessage::Attached));
    quiet.stream.write_all(end).unwrap();
    let reason = quiet.refusal();
    assert!(reason.contains("is for 1 processes"), "{reason}");
    drop(kept);
    house.until(|| house.half_frames() == 0);
}

/// Aim: who isn't heard any more can't have the keeper hold what it goes on saying.
#[test]
fn what_is_said_after_the_end_is_not_kept() {
    let (mut talker, keeper) = UnixStream::pair().unwrap();
    keeper.set_nonblocking(true).unwrap();
    let half = Arc::new(HalfFrames::new(usize::MAX));
    let mut socket = MemberSocket::new(keeper, Arc::clone(&half));
    socket.is_attached();
    let begin = [&(1_u32 << 20).to_le_bytes()[..], &[b' '; 100_000]].concat();
    for is_ending in [false, true] {
        talker.write_all(&begin).unwrap();
        for _ in 0..2 {
            assert_eq!(socket.receive(), None);
            assert_eq!(socket.message().unwrap(), None);
        }
        let held = begin.len() - HALF_FRAME_BYTES_OF_ONE;
        assert_eq!(half.bytes(), if is_ending { 0 } else { held });
        socket.end_when_said();
        assert_eq!(half.bytes(), 0);
    }
}
