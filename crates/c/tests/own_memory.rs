//! Programs whose arrays are in memory of their own, at both ends: how much memory that takes besides, and what becomes of the others when
//! one of them is killed while versions move.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exoskel_net::keeper::KeeperService;
use exoskel_transfer::Coupling;

mod compiled;

use compiled::{Folder, compile_c};

const COUPLING: &str = "[program.source]\n[program.target]\n[[connection]]\nfrom = \"source.field\"\nto = \"target.field\"\n";
const VERSIONS: u64 = 4;
const SIZE: u32 = 2;

/// What two sources have in shared memory, at most: the ring of each, and boards.
const SHARED_BYTES_MAX: u64 = 2 * (4 << 20) + (1 << 20);

/// One test at a time: each measures the memory of all keepers of this process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Both programs, all of whose processes are there.
struct Pair {
    keeper: KeeperService,
    sources: Vec<Child>,
    targets: Vec<Child>,
    _folder: Folder,
    _alone: MutexGuard<'static, ()>,
}

impl Pair {
    fn start(name: &str) -> Self {
        let alone = ONE_AT_A_TIME.lock();
        let alone = alone.unwrap_or_else(PoisonError::into_inner);
        let folder = Folder::new(name);
        let place = folder.path().join("keeper");
        let keeper = KeeperService::start(&place, Coupling::parse(COUPLING).unwrap()).unwrap();
        let program = folder.path().join("own_memory");
        compile_c("tests/own_memory.c", &program);
        let start = |which: &str| {
            (0..SIZE)
                .map(|rank| one(&program, which, rank, &place))
                .collect()
        };
        let (sources, targets) = (start("source"), start("target"));
        Self {
            keeper,
            sources,
            targets,
            _folder: folder,
            _alone: alone,
        }
    }

    /// Lets the sources export a version.
    fn export(&mut self) {
        for source in &mut self.sources {
            source.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        }
    }

    /// Until all processes of a program wait for a version, or for it to be taken.
    fn until_all_wait(&self, program: &str, version: u64) {
        self.until(|| {
            let waits = self.keeper.report().waits;
            waits.iter().any(|wait| {
                wait.program == program && wait.version == version && wait.ranks == [0, 1]
            })
        });
    }

    fn until_taken(&self, version: u64) {
        self.until(|| self.keeper.report().connections[0].versions >= Some(version));
    }

    fn until(&self, is_so: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_so() {
            assert!(
                begin.elapsed() < Duration::from_secs(60),
                "{:?}",
                self.keeper.report()
            );
            std::thread::yield_now();
        }
    }

    fn signal(process: &Child, signal: &str) {
        let words = [format!("-{signal}"), process.id().to_string()];
        assert!(Command::new("kill").args(words).status().unwrap().success());
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for process in self.sources.iter_mut().chain(&mut self.targets) {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn one(program: &Path, which: &str, rank: u32, keeper: &Path) -> Child {
    Command::new(program)
        .args([
            which,
            &rank.to_string(),
            &SIZE.to_string(),
            &VERSIONS.to_string(),
        ])
        .env("EXOSKEL_KEEPER", keeper)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn said(process: &mut Child) -> String {
    let mut said = String::new();
    process
        .stdout
        .as_mut()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    said
}

/// Memory of arrays that this process's keeper has, which is all that there is of them.
fn shared_bytes() -> u64 {
    let open = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let mut arrays = BTreeMap::new();
    for file in open {
        let name = std::fs::read_link(file.path());
        let is_array = name.is_ok_and(|name| name.to_string_lossy().contains("exoskel array"));
        if let Some(found) = std::fs::metadata(file.path()).ok().filter(|_| is_array) {
            arrays.insert(found.ino(), found.blocks() * 512);
        }
    }
    arrays.values().sum()
}

/// Aim: memory at both ends is the programs' own; where readers wait when a version is exported, hardly any more is there besides. Method:
/// each version is exported when all readers wait for it, but the first, whose connection may not be known yet.
#[test]
fn versions_pass_through_a_small_ring_while_readers_wait() {
    let mut pair = Pair::start("ring");
    pair.export();
    pair.until_taken(1);
    for version in 2..=VERSIONS {
        pair.until_all_wait("target", version);
        pair.export();
        pair.until_taken(version);
        let shared = shared_bytes();
        assert!(
            shared <= SHARED_BYTES_MAX,
            "version {version} has left {shared} bytes"
        );
    }
    for process in pair.sources.iter_mut().chain(&mut pair.targets) {
        assert_eq!(process.wait().unwrap().code(), Some(0));
    }
}

/// Aim: a version that nobody waits for is exported all the same, and nobody waits in that for who isn't reading.
#[test]
fn an_export_waits_for_nobody_who_does_not_read() {
    let mut pair = Pair::start("nobody");
    for target in &pair.targets {
        Pair::signal(target, "STOP");
    }
    for source in &mut pair.sources {
        source.stdin.as_mut().unwrap().write_all(b"\n\n").unwrap();
    }
    // They have exported the first, and wait to write the second.
    pair.until_all_wait("source", 1);
    for target in &pair.targets {
        Pair::signal(target, "CONT");
    }
    pair.until_taken(2);
}

/// Until the targets wait for the second version, of which one stands still, and the sources have filled their rings.
fn stuck(name: &str) -> Pair {
    let mut pair = Pair::start(name);
    pair.export();
    pair.until_taken(1);
    pair.until_all_wait("target", 2);
    Pair::signal(&pair.targets[0], "STOP");
    pair.export();
    pair.until_all_wait("source", 2);
    pair
}

#[test]
fn a_reader_killed_while_it_takes_is_a_loss_to_those_who_give() {
    let mut pair = stuck("reader");
    pair.targets[0].kill().unwrap();
    // They write again when all have taken.
    pair.export();
    for source in &mut pair.sources {
        assert_eq!(source.wait().unwrap().code(), Some(3));
        assert!(said(source).contains("rank 0 of target was lost"));
    }
}

#[test]
fn a_writer_killed_while_it_gives_is_a_loss_to_those_who_take() {
    let mut pair = stuck("writer");
    pair.sources[0].kill().unwrap();
    Pair::signal(&pair.targets[0], "CONT");
    for target in &mut pair.targets {
        assert_eq!(target.wait().unwrap().code(), Some(3));
        assert!(said(target).contains("rank 0 of source was lost"));
    }
}

#[test]
fn memory_into_which_a_version_is_read_belongs_to_one_array() {
    let folder = Folder::new("overlap");
    let place = folder.path().join("keeper");
    let _keeper = KeeperService::start(&place, Coupling::parse(COUPLING).unwrap()).unwrap();
    let program = folder.path().join("overlap");
    compile_c("tests/overlap.c", &program);
    let mut started = Command::new(&program);
    let done = started.env("EXOSKEL_KEEPER", &place).output().unwrap();
    let said = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(0), "{said}");
    let (error, places) = said.trim_end().split_once('\n').unwrap();
    let (first, second) = places.split_once(' ').unwrap();
    assert!(
        error.starts_with(&format!("the memory of target.ice (bytes {second} to 0x")),
        "{said}"
    );
    assert!(
        error.contains(&format!(
            "overlaps that of target.field (bytes {first} to 0x"
        )),
        "{said}"
    );
}
