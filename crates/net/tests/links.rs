//! The example of links in Rust, run as a reader runs it: two processes, and a capability that is passed on.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::process::Command;

#[path = "../examples/links.rs"]
#[allow(dead_code, reason = "its main function is for a terminal")]
mod example;

#[test]
fn a_capability_is_passed_on_to_another_process() {
    let mut second = Command::new(std::env::current_exe().unwrap());
    second.args(["the_plotter", "--exact", "--ignored", "--nocapture"]);
    example::ocean_and_atmosphere(second).unwrap();
}

#[test]
#[ignore = "the second process of the test above"]
fn the_plotter() {
    let words: Vec<String> = std::env::args().collect();
    let [.., credential, text] = words.as_slice() else {
        unreachable!("the first process gives both");
    };
    example::plotter(credential, text).unwrap();
}
