#![no_main]

#[path = "../coupling_doors.rs"]
mod doors;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doors::coupling(bytes));
