#![no_main]

#[path = "../trace_doors.rs"]
mod trace_doors;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| trace_doors::calls(bytes));
