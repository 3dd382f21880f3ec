//! What a coupling's file may say, and what becomes of programs that don't keep to it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::time::Duration;

use exoskel_redist::{AxisSharing, ElementType, Layout, MemoryOrder};
use exoskel_transfer::{
    ArrayEnd, AttachRequest, ConnectionState, Coupler, Coupling, Keeper, KeeperAction,
    KeeperMessage, LayoutDescription, MemberId, MemberMessage, OWN_KEEPER, PROTOCOL,
    REASON_BYTES_MAX, VERSION, last_taken, source_version,
};

const CLIMATE: &str = r#"
    [program.ocean]
    command = "ocean"
    [program.atmosphere]
    [[connection]]
    from = "ocean.sst"
    to = "atmosphere.sst"
    select = "[::2]"
    every = 3
    [[connection]]
    from = "atmosphere.heat"
    to = "ocean.heat"
"#;

/// A coupler and a keeper, and what members were told.
struct House {
    coupler: Coupler,
    keeper: Keeper,
    told: Vec<(MemberId, KeeperMessage)>,
    closed: Vec<MemberId>,
    allocated: Vec<u64>,
}

impl House {
    fn new(text: &str) -> Self {
        let coupling = Coupling::parse(text).unwrap();
        Self {
            coupler: Coupler::new(coupling.clone()),
            keeper: Keeper::new(coupling, OWN_KEEPER, false),
            told: Vec::new(),
            closed: Vec::new(),
            allocated: Vec::new(),
        }
    }

    fn run(&mut self) {
        loop {
            while let Some((_, order)) = self.coupler.next_order() {
                self.keeper.order(order);
            }
            match self.keeper.next_action() {
                None => return,
                Some(KeeperAction::Report(report)) => self.coupler.report(OWN_KEEPER, report),
                Some(KeeperAction::Allocate { bytes, .. }) => self.allocated.push(bytes),
                Some(KeeperAction::Close { member }) => self.closed.push(member),
                Some(KeeperAction::Send {
                    member, message, ..
                }) => self.told.push((member, message)),
                Some(other) => panic!("there is no other host: {other:?}"),
            }
        }
    }

    fn say(&mut self, member: MemberId, message: MemberMessage) -> Vec<KeeperMessage> {
        self.keeper.hear(member, message);
        self.run();
        self.heard(member)
    }

    fn heard(&mut self, member: MemberId) -> Vec<KeeperMessage> {
        let told = std::mem::take(&mut self.told).into_iter();
        let (its, others) = told.partition::<Vec<_>, _>(|(whose, _)| *whose == member);
        self.told = others;
        its.into_iter().map(|(_, message)| message).collect()
    }

    fn attach(&mut self, member: MemberId, program: &str, rank: u32, size: u32) {
        let answer = self.say(member, attach(program, rank, size));
        assert_eq!(answer, [KeeperMessage::Attached]);
    }

    fn refusal(&mut self, member: MemberId, message: MemberMessage) -> String {
        match self.say(member, message).as_slice() {
            [KeeperMessage::Refused { reason }] => reason.clone(),
            other => panic!("{other:?}"),
        }
    }
}

fn attach(program: &str, rank: u32, size: u32) -> MemberMessage {
    MemberMessage::Attach(AttachRequest::new(program, rank, size))
}

fn array(name: &str, length: u64, processes: u32) -> MemberMessage {
    let layout = Layout::new(
        &[length],
        ElementType::FLOAT64,
        vec![AxisSharing::Block],
        &[processes],
        &[0],
        MemoryOrder::C,
    );
    MemberMessage::Array {
        name: name.to_owned(),
        layout: LayoutDescription::of(&layout.unwrap()),
    }
}

#[test]
fn a_connection_is_ready_when_all_have_described_both_ends() {
    let mut house = House::new(CLIMATE);
    for rank in 0..2 {
        house.attach(10 + u64::from(rank), "ocean", rank, 2);
        house.say(10 + u64::from(rank), array("sst", 16, 2));
    }
    house.attach(20, "atmosphere", 0, 1);
    assert_eq!(
        house.coupler.connections()[0].state,
        ConnectionState::Waiting
    );
    let answer = house.say(20, array("sst", 8, 1));
    let [
        KeeperMessage::Memory { bytes: 64, .. },
        KeeperMessage::Partner {
            connection: 0,
            own: ArrayEnd::Target,
            rank: 0,
            bytes: 64,
        },
        KeeperMessage::Partner { rank: 1, .. },
        KeeperMessage::Connected { terms, .. },
    ] = answer.as_slice()
    else {
        panic!("{answer:?}");
    };
    assert_eq!(terms.other.to_string(), "ocean.sst");
    assert_eq!(house.coupler.connections()[0].state, ConnectionState::Ready);
    assert_eq!(house.coupler.connections()[0].version_bytes, 64);
    for rank in 0..2 {
        let heard = house.heard(10 + rank);
        let [
            KeeperMessage::Partner {
                own: ArrayEnd::Source,
                rank: 0,
                ..
            },
            KeeperMessage::Connected { .. },
        ] = heard.as_slice()
        else {
            panic!("{heard:?}");
        };
    }
    assert_eq!(house.allocated, [64, 64, 64]);
}

#[test]
fn who_is_not_what_the_file_says_is_refused_in_words() {
    let mut house = House::new(CLIMATE);
    let reason = house.refusal(1, attach("sea", 0, 1));
    assert!(
        reason.contains("\"sea\"") && reason.contains("atmosphere, ocean"),
        "{reason}"
    );
    assert_eq!(house.closed, [1]);
    let reason = house.refusal(2, attach("ocean", 2, 2));
    assert!(reason.contains("rank 2 of 2"), "{reason}");
    house.attach(3, "ocean", 0, 2);
    let reason = house.refusal(4, attach("ocean", 0, 2));
    assert!(
        reason.contains("rank 0 of ocean is here already")
            && reason.contains("give rank and size when the process attaches"),
        "{reason}"
    );
    let reason = house.refusal(5, attach("ocean", 1, 3));
    assert!(
        reason.contains("3 processes") && reason.contains("others say 2"),
        "{reason}"
    );
    house.attach(6, "ocean", 1, 2);
    house.say(3, array("sst", 16, 2));
    let reason = house.refusal(6, array("sst", 17, 2));
    assert!(
        reason.contains("17 of <f8") && reason.contains("16 of <f8"),
        "{reason}"
    );
    let old = MemberMessage::Attach(AttachRequest {
        protocol: PROTOCOL + 1,
        ..AttachRequest::new("ocean", 0, 1)
    });
    let reason = house.refusal(7, old);
    let theirs = format!(
        "the program uses Exoskel {VERSION} (attach protocol {})",
        PROTOCOL + 1
    );
    let ours = format!("the keeper is Exoskel {VERSION} (attach protocol {PROTOCOL})");
    assert!(
        reason.contains(&theirs) && reason.contains(&ours),
        "{reason}"
    );
    let reason = house.refusal(8, array("sst", 16, 2));
    assert_eq!(reason, "got a message that isn't due");
}

#[test]
fn ends_that_do_not_fit_are_named_with_both_sides() {
    let mut house = House::new(CLIMATE);
    house.attach(1, "ocean", 0, 1);
    house.say(1, array("sst", 16, 1));
    house.attach(2, "atmosphere", 0, 1);
    let answer = house.say(2, array("sst", 9, 1));
    let Some(KeeperMessage::Failed {
        connection: 0,
        reason,
        gone: None,
    }) = answer.last()
    else {
        panic!("{answer:?}");
    };
    for part in ["ocean.sst is 16", "atmosphere.sst is 9", "[8]", "[9]"] {
        assert!(reason.contains(part), "{part} in {reason}");
    }
    assert_eq!(
        house.heard(1).last(),
        Some(&KeeperMessage::Failed {
            connection: 0,
            reason: reason.clone(),
            gone: None,
        })
    );
}

#[test]
fn the_first_that_was_lost_is_named_to_all() {
    let mut house = House::new(CLIMATE);
    for (member, program) in [(1, "ocean"), (2, "atmosphere")] {
        house.attach(member, program, 0, 1);
    }
    house.say(1, array("sst", 16, 1));
    house.keeper.lost(1, "its process has ended");
    house.run();
    // What was described stays: the connection can still be made.
    let answer = house.say(2, array("sst", 8, 1));
    assert!(
        matches!(answer.last(), Some(KeeperMessage::Connected { .. })),
        "{answer:?}"
    );
    let gone = answer.iter().find_map(|message| match message {
        KeeperMessage::Gone(end) => end.loss.clone(),
        _ => None,
    });
    assert_eq!(gone.unwrap().program, "ocean");
    // Of the other array nothing is known, and nobody will say more.
    assert!(
        matches!(&house.coupler.connections()[1].state, ConnectionState::Failed(reason) if reason.contains("rank 0 of ocean is gone")),
    );
    house.say(
        2,
        MemberMessage::Leave {
            error: Some("MemberLostError".to_owned()),
        },
    );
    assert_eq!(house.coupler.first_lost().unwrap().program, "ocean");
}

#[test]
fn a_program_that_ends_without_a_member_is_not_waited_for() {
    let mut house = House::new(CLIMATE);
    house.attach(2, "atmosphere", 0, 1);
    house.say(2, array("sst", 8, 1));
    house.coupler.program_ended("ocean");
    house.run();
    let heard = house.heard(2);
    let [KeeperMessage::Failed { reason, .. }] = heard.as_slice() else {
        panic!("{heard:?}");
    };
    assert!(
        reason.contains("ocean has ended without a Member"),
        "{reason}"
    );
}

#[test]
fn files_that_contradict_themselves_are_refused() {
    let program = "[program.a]\n[program.b]\n";
    for (text, expected) in [
        ("", "no program"),
        ("[program.\"a b\"]", "letters, digits"),
        ("[program.a]\nspeed = 1", "unknown field"),
        (
            "[[connection]]\nfrom = \"a\"\nto = \"b.x\"",
            "program.array",
        ),
        (
            "[[connection]]\nfrom = \"a.x\"\nto = \"c.x\"",
            "expected one of a, b",
        ),
        ("[[connection]]\nfrom = \"a.x\"\nto = \"a.x\"", "same array"),
        (
            "[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"\nevery = 0",
            "every = 0",
        ),
        ("wait = 0\n[program.a]", "more than 0"),
        ("wait = nan\n[program.a]", "more than 0"),
        (
            "[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"\nselect = \"[1]\"",
            "a.x to b.x: select: got the selection \"[1]\"",
        ),
        (
            "[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"\ninto = \"::2\"",
            "a.x to b.x: into: got the selection \"::2\"",
        ),
        (
            "[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"\npermute = [1, 2]",
            "permute = [1, 2], expected each axis once, counted from 0",
        ),
        (
            "[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"\npermute = []",
            "expected each axis once",
        ),
        (
            "[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"\npermute = [1, 0]\nselect = \"[:, :, ::2]\"",
            "select of 3 axes and permute of 2",
        ),
        (
            "[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"\n[[connection]]\nfrom = \"a.x\"\nto = \"b.x\"",
            "there twice",
        ),
    ] {
        let whole = match text.starts_with("[[") {
            true => format!("{program}{text}"),
            false => text.to_owned(),
        };
        let error = Coupling::parse(&whole).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected:?} in {error:?}");
    }
}

#[test]
fn a_layout_is_said_and_made_again() {
    let sharing = vec![
        AxisSharing::Block,
        AxisSharing::BlockOf(9),
        AxisSharing::Cyclic(3),
        AxisSharing::Bounds(vec![0, 2, 7]),
        AxisSharing::Whole,
        AxisSharing::Replicated,
    ];
    let layout = Layout::new(
        &[10, 18, 5, 7, 4, 3],
        ">c16".parse().unwrap(),
        sharing,
        &[5, 2, 3, 2, 1, 2],
        &[2, 0, 0, 1, 0, 0],
        MemoryOrder::Fortran,
    )
    .unwrap();
    assert_eq!(LayoutDescription::of(&layout).layout(), Ok(layout));
}

#[test]
fn each_so_many_th_version_goes() {
    assert_eq!(
        [1, 2, 3].map(|version| source_version(version, 3)),
        [1, 4, 7]
    );
    let last: Vec<u64> = (0..8).map(|exported| last_taken(exported, 3)).collect();
    assert_eq!(last, [0, 1, 1, 1, 4, 4, 4, 7]);
}

#[test]
fn a_program_of_which_a_process_was_refused_is_not_waited_for() {
    let mut house = House::new(CLIMATE);
    house.attach(1, "ocean", 0, 2);
    house.attach(2, "atmosphere", 0, 1);
    house.say(2, array("sst", 8, 1));
    house.refusal(3, attach("ocean", 1, 3));
    let heard = house.heard(2);
    assert!(
        matches!(heard.as_slice(), [KeeperMessage::Failed { connection: 0, reason, gone: None }] if reason.contains("a process of ocean was refused (rank 1 of ocean says")),
        "{heard:?}"
    );
    // Who has left can't come again.
    house.say(2, MemberMessage::Leave { error: None });
    let reason = house.refusal(4, attach("atmosphere", 0, 1));
    assert!(reason.contains("has left already"), "{reason}");
}

#[test]
fn who_comes_late_is_told_what_has_happened() {
    let mut house = House::new(CLIMATE);
    house.attach(1, "ocean", 0, 1);
    house.keeper.lost(1, "its process has ended");
    house.run();
    let answer = house.say(2, attach("atmosphere", 0, 1));
    assert!(
        matches!(answer.as_slice(), [KeeperMessage::Attached, KeeperMessage::Gone(gone)] if gone.program == "ocean"),
        "{answer:?}"
    );
    let answer = house.say(2, array("sst", 8, 1));
    assert!(
        matches!(answer.last(), Some(KeeperMessage::Failed { .. })),
        "{answer:?}"
    );
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

#[test]
fn who_does_not_attach_in_time_is_named_and_not_waited_for() {
    let mut house = House::new(&format!("wait = 60\n{CLIMATE}"));
    // Nobody is there, so nobody waits.
    assert_eq!(house.coupler.look(seconds(1_000)), None);
    house.attach(1, "atmosphere", 0, 1);
    house.say(1, array("sst", 8, 1));
    assert_eq!(house.coupler.look(seconds(2_000)), Some(seconds(2_060)));
    house.attach(2, "ocean", 1, 4);
    // It counts from the last one that has come.
    assert_eq!(house.coupler.look(seconds(2_059)), Some(seconds(2_119)));
    assert_eq!(house.coupler.look(seconds(2_118)), Some(seconds(2_119)));
    assert_eq!(house.heard(1), []);
    assert_eq!(house.coupler.look(seconds(2_119)), None);
    house.run();
    let heard = house.heard(1);
    let [
        KeeperMessage::Failed {
            reason, gone: None, ..
        },
    ] = heard.as_slice()
    else {
        panic!("{heard:?}");
    };
    let expected = "ranks 0, 2, 3 of ocean have not attached within 60 s";
    assert!(reason.contains(expected), "{reason}");
    // Who comes all the same is told why.
    house.attach(3, "ocean", 0, 4);
    let answer = house.say(3, array("sst", 16, 4));
    assert!(
        matches!(answer.last(), Some(KeeperMessage::Failed { .. })),
        "{answer:?}"
    );
}

#[test]
fn a_program_that_is_whole_has_all_the_time_it_wants() {
    let mut house = House::new(CLIMATE);
    house.attach(1, "atmosphere", 0, 1);
    assert_eq!(house.coupler.look(seconds(1)), Some(seconds(301)));
    house.attach(2, "ocean", 0, 1);
    assert_eq!(house.coupler.look(seconds(2)), None);
    assert_eq!(house.coupler.look(seconds(9_000)), None);
    assert_eq!(
        house.coupler.connections()[0].state,
        ConnectionState::Waiting
    );
    let missing = |house: &House, end: &str| house.coupler.missing(&end.parse().unwrap());
    let said = "rank 0 of ocean has not described ocean.sst";
    assert_eq!(missing(&house, "ocean.sst").unwrap(), said);
    house.say(2, array("sst", 16, 1));
    assert_eq!(missing(&house, "ocean.sst"), None);
}

#[test]
fn who_leaves_before_it_has_described_its_array_is_named_with_its_end() {
    for error in [None, Some("ValueError: of a file".to_owned())] {
        let mut house = House::new(CLIMATE);
        house.attach(1, "ocean", 0, 1);
        house.say(1, array("sst", 16, 1));
        house.attach(2, "atmosphere", 0, 1);
        let why = error.clone();
        house.say(2, MemberMessage::Leave { error });
        let heard = house.heard(1);
        let failed = heard.iter().find_map(|message| match message {
            KeeperMessage::Failed {
                gone: Some(gone), ..
            } => Some((
                gone.program.as_str(),
                gone.loss.clone().map(|loss| loss.why),
            )),
            _ => None,
        });
        assert_eq!(failed, Some(("atmosphere", why)), "{heard:?}");
    }
}

#[test]
fn the_reason_of_a_refusal_is_passed_on() {
    let mut house = House::new(CLIMATE);
    house.attach(1, "ocean", 0, 2);
    house.attach(2, "ocean", 1, 2);
    house.attach(3, "atmosphere", 0, 1);
    house.say(1, array("sst", 16, 2));
    let reason = house.refusal(2, array("sst", 17, 2));
    let heard = house.heard(3);
    let Some(KeeperMessage::Gone(gone)) = heard.last() else {
        panic!("{heard:?}");
    };
    let why = gone.loss.clone().unwrap().why;
    assert_eq!(why, format!("it was refused: {reason}"));
    let told = house.coupler.refusals();
    assert_eq!(told, [("ocean".to_owned(), reason)]);
    // Of another version of Exoskel.
    let old = MemberMessage::Attach(AttachRequest {
        protocol: PROTOCOL + 1,
        ..AttachRequest::new("ocean", 0, 1)
    });
    let reason = house.refusal(4, old);
    assert_eq!(house.coupler.refusals()[1].1, reason);
}

#[test]
fn connections_that_write_the_same_elements_both_fail() {
    let connections = |first: &str, second: &str| {
        format!(
            "[program.a]\n[program.b]\n[program.c]\n\
            [[connection]]\nfrom = \"a.x\"\nto = \"c.y\"\n{first}\n[[connection]]\nfrom = \"b.x\"\nto = \"c.y\"\n{second}"
        )
    };
    let states = |text: &str| {
        let mut house = House::new(text);
        for (id, program, name, length) in [(1, "a", "x", 6), (2, "b", "x", 4), (3, "c", "y", 10)] {
            house.attach(id, program, 0, 1);
            house.say(id, array(name, length, 1));
        }
        let connections = house.coupler.connections();
        connections
            .iter()
            .map(|one| one.state.clone())
            .collect::<Vec<_>>()
    };
    let apart = connections("into = \"[:6]\"", "into = \"[6:]\"");
    assert_eq!(
        states(&apart),
        [ConnectionState::Ready, ConnectionState::Ready]
    );
    let overlapping = connections("into = \"[:6]\"", "into = \"[5:9]\"");
    let said = "a.x to c.y writes [0:6] of c.y, b.x to c.y writes [5:9]: expected parts that don't overlap, see into";
    let other = "b.x to c.y writes [5:9] of c.y, a.x to c.y writes [0:6]: expected parts that don't overlap, see into";
    let failed = [said, other].map(|reason| ConnectionState::Failed(reason.to_owned()));
    assert_eq!(states(&overlapping), failed);
}

#[test]
fn a_reason_that_all_are_told_is_short() {
    let mut house = House::new(CLIMATE);
    house.attach(1, "ocean", 0, 1);
    house.attach(2, "atmosphere", 0, 1);
    let error = Some("\u{e4}".repeat(REASON_BYTES_MAX));
    house.say(1, MemberMessage::Leave { error });
    let lost = house.coupler.first_lost().unwrap();
    assert_eq!(lost.why, "\u{e4}".repeat(REASON_BYTES_MAX / 2));
}
