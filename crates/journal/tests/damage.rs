//! Journals that are damaged, of something else, or no journals at all.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use exoskel_journal::{
    Delivery, EarlyResult, ItemOutcome, Journal, JournalError, ResultSink, RunState, RunTexts,
    StorageBackend,
};

/// A disk in memory. Copies are the same disk.
#[derive(Debug, Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let contents = self.0.lock().unwrap();
        let read = contents.get(offset as usize..offset as usize + len);
        read.map(<[u8]>::to_vec)
            .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.lock().unwrap().resize(len as usize, 0);
        Ok(())
    }

    fn sync_data(&self, _eventual: bool) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut contents = self.0.lock().unwrap();
        let end = offset as usize + data.len();
        if contents.len() < end {
            contents.resize(end, 0);
        }
        contents[offset as usize..end].copy_from_slice(data);
        Ok(())
    }
}

impl Memory {
    fn of(contents: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(contents)))
    }

    fn contents(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

/// A sink of texts.
#[derive(Default)]
struct Texts(Vec<Vec<u8>>);

impl ResultSink for Texts {
    type Value = Vec<u8>;
    type Error = JournalError;

    fn write(&mut self, _index: u64, value: Vec<u8>) -> Result<(), JournalError> {
        self.0.push(value);
        Ok(())
    }

    fn read_early(
        &mut self,
        _index: u64,
        early: EarlyResult,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        Ok(Some(early.record))
    }

    fn sync(&mut self) -> Result<Vec<u8>, JournalError> {
        Ok((self.0.len() as u64).to_le_bytes().to_vec())
    }
}

fn texts() -> RunTexts {
    RunTexts {
        program: "Farm(f)".to_owned(),
        source: "range(0, 10)".to_owned(),
        sink: "out.jsonl".to_owned(),
    }
}

fn open(disk: &Memory) -> Result<(Journal, RunState), JournalError> {
    Journal::open(disk.clone(), &texts(), || Ok(b"begin".to_vec()))
}

/// A journal of a run that was ended in the middle: three results in the sink, two that came early, in two groups.
fn journal() -> Memory {
    let disk = Memory::default();
    let (journal, state) = open(&disk).unwrap();
    let mut delivery = Delivery::new(journal, state, true).unwrap();
    let mut sink = Texts::default();
    let mut take = |index: u64, turn| {
        delivery
            .take(&mut sink, index, turn, Duration::ZERO)
            .unwrap();
        delivery.commit(&mut sink).unwrap();
    };
    let early = |byte| {
        ItemOutcome::Early(EarlyResult {
            record: vec![byte; 9000],
            is_restricted: true,
            is_skipped: false,
        })
    };
    take(0, ItemOutcome::Now(b"a".to_vec()));
    take(5, early(5));
    take(1, ItemOutcome::Now(b"b".to_vec()));
    take(4, early(4));
    take(2, ItemOutcome::Now(b"c".to_vec()));
    drop(delivery);
    disk
}

/// What a run comes to that goes on from a journal: the state, and all results from there on.
fn outcome(journal: Journal, state: RunState) -> Result<(RunState, Vec<Vec<u8>>), JournalError> {
    let mut delivery = Delivery::new(journal, state.clone(), true)?;
    let stored: Vec<u64> = delivery.stored().collect();
    let mut sink = Texts::default();
    delivery.follow_up(&mut sink)?;
    for index in (state.watermark..6).filter(|index| !stored.contains(index)) {
        let now = ItemOutcome::Now(vec![index as u8; 9000]);
        delivery.take(&mut sink, index, now, Duration::ZERO)?;
    }
    Ok((state, sink.0))
}

/// A journal that was closed in good order, and one whose run was killed.
fn closed_and_killed() -> [Vec<u8>; 2] {
    let disk = journal();
    let closed = disk.contents();
    let (journal, _) = open(&disk).unwrap();
    let killed = disk.contents();
    drop(journal);
    [closed, killed]
}

/// How long a piece is that the store reads at once, at most, in this file's journals.
const PIECE_BYTES: u64 = 16_384;

/// But for one: which pages are in use.
const LARGE_PIECE: std::ops::Range<u64> = 1_589_248..1_589_248 + (1 << 20);

/// Aim: damage is an error that names the piece in which it is, or the run comes to what it would have come to. Never a panic, a state that
/// never was, or a change to a file that is refused. Method: bits turned over in a journal that was closed, and in one whose run was killed: at
/// each place of both heads, and at many of all pages that hold something.
#[test]
fn damage_is_told_with_its_place_or_changes_nothing() {
    for whole in closed_and_killed() {
        let expected = outcome_of(&whole).unwrap();
        assert_eq!(expected.1.len(), 3);
        let is_used = |page: &usize| {
            whole[page * 4096..]
                .iter()
                .take(4096)
                .any(|byte| *byte != 0)
        };
        let used: Vec<usize> = (2..whole.len() / 4096).filter(is_used).collect();
        assert!(used.len() > 5, "{used:?}");
        let within = [0, 27, 300];
        let pages = used
            .iter()
            .flat_map(|page| within.map(|place| page * 4096 + place));
        let heads = (0..32).step_by(3).chain((4096..4490).step_by(9));
        let rest = (8192..whole.len()).step_by(800_003);
        let (mut told, mut same) = (0, 0);
        for place in heads.chain(pages).chain(rest) {
            let mut contents = whole.clone();
            contents[place] ^= [0x01, 0x54][place % 2];
            let disk = Memory::of(contents.clone());
            match open(&disk).and_then(|(journal, state)| outcome(journal, state)) {
                Ok((state, results)) => {
                    same += 1;
                    // One commit may be lost, whose results go to the sink again then.
                    let first = usize::try_from(state.watermark).unwrap();
                    assert!((2..=3).contains(&first), "byte {place}: {state:?}");
                    let all: Vec<_> = (first as u8..6).map(|item| vec![item; 9000]).collect();
                    assert!(results == all, "byte {place}: {state:?}");
                    assert_eq!(state.position, (first as u64).to_le_bytes(), "byte {place}");
                }
                Err(JournalError::Damaged { offset, reason }) => {
                    told += 1;
                    let place = place as u64;
                    let is_within = match offset == LARGE_PIECE.start {
                        true => LARGE_PIECE.contains(&place),
                        false => (offset..offset + PIECE_BYTES).contains(&place),
                    };
                    assert!(is_within, "byte {place}: at {offset}, {reason}");
                    assert!(disk.contents() == contents, "byte {place}: {reason}");
                }
                Err(JournalError::NotAJournal | JournalError::Version { .. }) if place < 28 => {}
                Err(error) => panic!("byte {place}: {error}"),
            }
        }
        assert!(told > 20 && same > 20, "{told} told, {same} the same");
    }
}

fn outcome_of(contents: &[u8]) -> Result<(RunState, Vec<Vec<u8>>), JournalError> {
    open(&Memory::of(contents.to_vec())).and_then(|(journal, state)| outcome(journal, state))
}

/// Aim: a journal that was cut off is an error that says how long it is, or the run comes to what it would have come to. Method: cut at
/// places of its heads, and around the end of each page.
#[test]
fn a_short_journal_is_damaged() {
    for whole in closed_and_killed() {
        let pages = (2..whole.len() / 4096)
            .step_by(9)
            .flat_map(|page| [page * 4096 - 1, page * 4096]);
        for length in (1..32).chain((4090..4420).step_by(6)).chain(pages) {
            let contents = whole[..length].to_vec();
            let disk = Memory::of(contents.clone());
            match open(&disk) {
                Ok((_, state)) => panic!("{length} bytes: {state:?}"),
                Err(JournalError::Damaged { offset, reason }) => {
                    let is_named = reason.contains(&format!("{length} bytes"));
                    assert!(
                        is_named || offset == length as u64,
                        "{length} bytes: {offset}, {reason}"
                    );
                    assert!(disk.contents() == contents, "{length} bytes");
                }
                Err(JournalError::NotAJournal) if length < 7 => {}
                Err(error) => panic!("{length} bytes: {error}"),
            }
        }
    }
}

/// A sink that only says where it is.
struct Place(Vec<u8>);

impl ResultSink for Place {
    type Value = u8;
    type Error = JournalError;

    fn write(&mut self, _index: u64, value: u8) -> Result<(), JournalError> {
        self.0 = vec![value; 60_000];
        Ok(())
    }

    fn read_early(&mut self, _: u64, _: EarlyResult) -> Result<Option<u8>, JournalError> {
        Ok(None)
    }

    fn sync(&mut self) -> Result<Vec<u8>, JournalError> {
        Ok(self.0.clone())
    }
}

/// Aim: what was folded, which the position holds, is one that was committed with the items that it is of, or the journal is damaged.
/// Method: a byte turned over at many places of a journal whose state has many pages.
#[test]
fn a_damaged_fold_is_told() {
    let disk = Memory::default();
    let (journal, state) = open(&disk).unwrap();
    let mut delivery = Delivery::new(journal, state, true).unwrap();
    let mut place = Place(Vec::new());
    for value in 1..=4 {
        delivery.append(&mut place, Some(value)).unwrap();
        let amid = delivery.commit(&mut place);
        assert!(matches!(amid, Err(JournalError::AmidItem { .. })));
        delivery.end_items(value.into(), Duration::ZERO).unwrap();
        delivery.commit(&mut place).unwrap();
    }
    drop(delivery);
    let whole = disk.contents();
    let (mut told, mut good) = (0, 0);
    for at in (4096..whole.len()).step_by(4_801) {
        let mut contents = whole.clone();
        contents[at] ^= 0x55;
        let disk = Memory::of(contents.clone());
        match open(&disk) {
            Ok((_, state)) => {
                good += 1;
                let value = u8::try_from(state.watermark).unwrap();
                assert!((3..=4).contains(&value), "byte {at}: {value}");
                assert!(state.position == vec![value; 60_000], "byte {at}");
                assert_eq!(state.results, state.watermark);
            }
            Err(JournalError::Damaged { .. }) => {
                told += 1;
                assert!(disk.contents() == contents, "byte {at}");
            }
            Err(error) => panic!("byte {at}: {error}"),
        }
    }
    assert!(told > 10 && good > 10, "{told} told, {good} good");
}

/// Aim: a run of something else is refused, and what it would overwrite stays. Method: each part changed, and files of others.
#[test]
fn a_journal_of_something_else_is_refused() {
    let disk = journal();
    let before = disk.contents();
    type Change = fn(&mut RunTexts);
    let changes: [(&str, Change); 3] = [
        ("program", |texts| texts.program.push('!')),
        ("source", |texts| texts.source.push('!')),
        ("sink", |texts| texts.sink.push('!')),
    ];
    for (changed, change) in changes {
        let mut texts = texts();
        change(&mut texts);
        let refused = Journal::open(disk.clone(), &texts, || Ok(Vec::new()));
        assert!(
            matches!(refused, Err(JournalError::Changed { part, .. }) if part == changed),
            "{refused:?}"
        );
        assert_eq!(disk.contents(), before);
    }
    for other in [b"results\n".to_vec(), vec![7; 100_000]] {
        let disk = Memory::of(other.clone());
        let refused = open(&disk);
        assert!(
            matches!(refused, Err(JournalError::NotAJournal)),
            "{refused:?}"
        );
        assert_eq!(disk.contents(), other);
    }
    assert!(matches!(open(&journal()), Ok((_, state)) if state.watermark == 3));
}

/// Aim: early results come back as they were, and skipped items only to those who want them. Method: a run that goes on.
#[test]
fn a_run_goes_on_where_it_was() {
    let disk = journal();
    let (journal, state) = open(&disk).unwrap();
    assert_eq!((state.watermark, state.is_finished), (3, false));
    let mut delivery = Delivery::new(journal, state, true).unwrap();
    assert_eq!(delivery.stored().collect::<Vec<_>>(), [4, 5]);
    let numbers = delivery.numbers().clone();
    assert_eq!([0, 1, 2].map(|nth| numbers.index_of(nth)), [3, 6, 7]);
    let mut sink = Texts::default();
    delivery
        .take(&mut sink, 6, ItemOutcome::Skipped, Duration::ZERO)
        .unwrap();
    delivery.commit(&mut sink).unwrap();
    drop(delivery);
    let (journal, state) = open(&disk).unwrap();
    let delivery = Delivery::new(journal, state.clone(), false).unwrap();
    assert_eq!(
        delivery.stored().collect::<Vec<_>>(),
        [4, 5],
        "6 is run again"
    );
    drop(delivery);
    let (journal, _) = open(&disk).unwrap();
    let mut delivery = Delivery::new(journal, state, true).unwrap();
    assert_eq!(delivery.stored().collect::<Vec<_>>(), [4, 5, 6]);
    let now = ItemOutcome::Now(b"d".to_vec());
    delivery.take(&mut sink, 3, now, Duration::ZERO).unwrap();
    assert_eq!(sink.0, [b"d".to_vec(), vec![4; 9000], vec![5; 9000]]);
    assert_eq!((delivery.next(), delivery.skipped()), (7, 1));
    delivery.finish(&mut sink).unwrap();
    drop(delivery);
    assert!(open(&disk).unwrap().1.is_finished);
}

/// Aim: a second result of an item, and a source that ends too soon, are errors. Method: both.
#[test]
fn what_cannot_be_is_an_error() {
    let (journal, state) = open(&journal()).unwrap();
    let mut delivery = Delivery::new(journal, state, true).unwrap();
    let mut sink = Texts::default();
    for index in [0, 2, 4] {
        let second = delivery.take(&mut sink, index, ItemOutcome::Skipped, Duration::ZERO);
        assert!(
            matches!(second, Err(JournalError::SecondResult { .. })),
            "{second:?}"
        );
    }
    let ended = delivery.finish(&mut sink);
    assert!(
        matches!(
            ended,
            Err(JournalError::SourceTooShort {
                got: 3,
                expected: 5
            })
        ),
        "{ended:?}"
    );
}

/// Aim: a run that has begun is never begun anew because its head is damaged. Method: a zero at each place of the head, the first page
/// zero, and the file cut off there, of a run that has results.
#[test]
fn a_damaged_head_is_no_run_that_was_never_begun() {
    let whole = journal().contents();
    let mut damaged: Vec<Vec<u8>> = (0..22)
        .map(|place| {
            let mut contents = whole.clone();
            contents[place] = 0;
            contents
        })
        .collect();
    damaged.push([&[0; 4096], &whole[4096..]].concat());
    damaged.push(vec![0; 4096]);
    damaged.push(vec![0; 3_000_000]);
    damaged.push(whole[..20].to_vec());
    for contents in damaged {
        let disk = Memory::of(contents.clone());
        let refused = open(&disk);
        assert!(
            matches!(refused, Err(JournalError::Damaged { .. })),
            "{refused:?}"
        );
        assert!(disk.contents() == contents, "{refused:?}");
    }
}

/// Aim: a journal of which only the head is missing is begun, and only if its sink is where it was. Method: the head taken from one that
/// was just begun.
#[test]
fn a_journal_that_was_just_begun_needs_no_head() {
    let disk = Memory::default();
    drop(open(&disk).unwrap());
    let begun = disk.contents();
    let headless = [&[0; 4096], &begun[4096..]].concat();
    let moved = Journal::open(Memory::of(headless.clone()), &texts(), || {
        Ok::<_, JournalError>(b"elsewhere".to_vec())
    });
    assert!(
        matches!(moved, Err(JournalError::Damaged { .. })),
        "{moved:?}"
    );
    let disk = Memory::of(headless);
    let (_, state) = open(&disk).unwrap();
    assert_eq!((state.watermark, &*state.position), (0, &b"begin"[..]));
    assert!(disk.contents()[..4096] == begun[..4096]);
}

/// A sink that refuses one result, and why.
struct Refusing(Texts, Vec<u8>, io::ErrorKind);

impl ResultSink for Refusing {
    type Value = Vec<u8>;
    type Error = JournalError;

    fn write(&mut self, index: u64, value: Vec<u8>) -> Result<(), JournalError> {
        match value == self.1 {
            true => Err(JournalError::Disk(self.2.into())),
            false => self.0.write(index, value),
        }
    }

    fn read_early(
        &mut self,
        index: u64,
        early: EarlyResult,
    ) -> Result<Option<Vec<u8>>, JournalError> {
        self.0.read_early(index, early)
    }

    fn blames_result(error: &JournalError) -> bool {
        !matches!(error, JournalError::Disk(error) if error.kind() == io::ErrorKind::StorageFull)
    }

    fn sync(&mut self) -> Result<Vec<u8>, JournalError> {
        self.0.sync()
    }
}

/// Aim: an early result that the sink refuses fails one run, and the next one runs its item again, but not if the sink had no room for it.
/// Method: the second of two early results is refused, and the run goes on.
#[test]
fn a_refused_early_result_is_made_again() {
    let cases = [
        (io::ErrorKind::Other, vec![4_u64]),
        (io::ErrorKind::StorageFull, vec![4, 5]),
    ];
    for (why, left) in cases {
        let disk = journal();
        let (journal, state) = open(&disk).unwrap();
        let mut delivery = Delivery::new(journal, state, true).unwrap();
        let mut sink = Refusing(Texts::default(), vec![5; 9000], why);
        let now = ItemOutcome::Now(b"d".to_vec());
        let refused = delivery.take(&mut sink, 3, now, Duration::ZERO);
        assert!(refused.is_err());
        drop(delivery);
        let (journal, state) = open(&disk).unwrap();
        assert_eq!(state.watermark, 3);
        let delivery = Delivery::new(journal, state, true).unwrap();
        assert_eq!(delivery.stored().collect::<Vec<u64>>(), left);
    }
}

/// A disk that keeps what was written, up to the end of the program that writes.
#[derive(Debug)]
struct Killed {
    disk: Memory,
    left: Mutex<u32>,
}

impl Killed {
    fn step(&self) -> io::Result<()> {
        let mut left = self.left.lock().unwrap();
        *left = left.checked_sub(1).ok_or(io::ErrorKind::Interrupted)?;
        Ok(())
    }
}

impl StorageBackend for Killed {
    fn len(&self) -> io::Result<u64> {
        self.disk.len()
    }

    fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.disk.read(offset, len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.step()?;
        self.disk.set_len(len)
    }

    fn sync_data(&self, eventual: bool) -> io::Result<()> {
        self.step()?;
        self.disk.sync_data(eventual)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.step()?;
        self.disk.write(offset, data)
    }
}

/// Method: the program is killed before each of its writes.
#[test]
fn a_run_that_was_killed_while_its_journal_was_begun_is_begun() {
    let mut kills = 0;
    loop {
        let disk = Memory::default();
        let killed = Killed {
            disk: disk.clone(),
            left: Mutex::new(kills),
        };
        let begun = Journal::open(killed, &texts(), || {
            Ok::<_, JournalError>(b"begin".to_vec())
        });
        let is_whole = begun.is_ok();
        drop(begun);
        let (_, state) = open(&disk).unwrap();
        assert_eq!((state.watermark, &*state.position), (0, &b"begin"[..]));
        if is_whole {
            break;
        }
        kills += 1;
    }
    assert!(kills > 10, "{kills}");
}

/// Aim: who changed one function of a long program reads its name alone. Method: one part of three changed, and parts left out.
#[test]
fn a_refusal_names_what_differs() {
    let texts = |program: &str| RunTexts {
        program: program.to_owned(),
        source: "range(0, 10)".to_owned(),
        sink: "JsonLines('out.jsonl')".to_owned(),
    };
    let disk = Memory::of(Vec::new());
    let open = |texts: &RunTexts| -> Result<_, JournalError> {
        Journal::open(disk.clone(), texts, || Ok(Vec::new()))
    };
    drop(open(&texts("Farm(f), f 12, g 34")).unwrap());
    // Of a source, which is no list, all of it is named.
    let mut longer = texts("Farm(f), f 12, g 34");
    longer.source = "range(0, 11)".to_owned();
    let refused = open(&longer).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("got range(0, 11), expected range(0, 10); ")
    );
    for (program, got, expected) in [
        ("Farm(f), f 56, g 34", "f 56", "f 12"),
        ("Farm(h), h 12, g 34", "Farm(h), h 12", "Farm(f), f 12"),
        ("Farm(f), f 12", "Farm(f), f 12", "Farm(f), f 12, g 34"),
    ] {
        let refused = open(&texts(program)).unwrap_err();
        let said = refused.to_string();
        let told = format!("begun with: got {got}, expected {expected} (");
        assert!(said.contains(&told), "{said}");
    }
}
