//! Programs in C and Fortran that hand arrays to each other.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::path::Path;
use std::process::{Child, Command, Stdio};

use exoskel_net::keeper::KeeperService;
use exoskel_transfer::{ConnectionState, Coupling};

mod compiled;

use compiled::{Folder, compile, compile_c};

const COUPLING: &str = "[program.ocean]\n[program.atmosphere]\n[[connection]]\nfrom = \"ocean.sst\"\nto = \"atmosphere.sst\"\n\
    [[connection]]\nfrom = \"atmosphere.heat\"\nto = \"ocean.heat\"\n\
    [[connection]]\nfrom = \"ocean.mesh\"\nto = \"atmosphere.mesh\"\n";
const STEPS: u64 = 5;

fn start(program: &Path, size: u32, keeper: &Path) -> Vec<Child> {
    let start = |rank: u32| {
        Command::new(program)
            .args([rank.to_string(), size.to_string(), STEPS.to_string()])
            .env("EXOSKEL_KEEPER", keeper)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    };
    (0..size).map(start).collect()
}

fn couple(name: &str, atmosphere: impl Fn(&Path)) {
    let folder = Folder::new(name);
    let place = folder.path().join("keeper");
    let keeper = KeeperService::start(&place, Coupling::parse(COUPLING).unwrap()).unwrap();
    let ocean = folder.path().join("ocean");
    compile_c("tests/ocean.c", &ocean);
    let other = folder.path().join("atmosphere");
    atmosphere(&other);
    let mut running = start(&ocean, 4, &place);
    running.extend(start(&other, 2, &place));
    for mut process in running {
        let ended = process.wait().unwrap();
        assert!(ended.success(), "{ended}");
    }
    let report = keeper.report();
    assert_eq!(report.first_lost, None);
    for connection in report.connections {
        assert_eq!(
            connection.state,
            ConnectionState::Ready,
            "{}",
            connection.name
        );
        assert_eq!(connection.versions, Some(STEPS), "{}", connection.name);
    }
}

#[test]
fn programs_in_c_exchange_arrays() {
    couple("c", |program| {
        compile_c("tests/atmosphere.c", program);
    });
}

#[test]
#[expect(
    clippy::print_stderr,
    reason = "the runner has no word for a test that can't run here"
)]
fn a_program_in_fortran_gets_what_one_in_c_writes() {
    if Command::new("gfortran").arg("--version").output().is_err() {
        eprintln!("skipped: gfortran is missing (apt-get install gfortran)");
        return;
    }
    couple("fortran", |program| {
        let sources = ["include/exoskel.f90", "tests/atmosphere.f90"];
        let modules = format!("-J{}", program.parent().unwrap().display());
        compile("gfortran", &["-Wall", &modules], &sources, program);
    });
}

#[test]
fn the_header_is_good_in_c_plus_plus() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/exoskel.h");
    let done = Command::new("c++")
        .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c++"])
        .arg(header)
        .status()
        .unwrap();
    assert!(done.success());
}
