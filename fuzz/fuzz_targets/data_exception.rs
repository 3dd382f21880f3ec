#![no_main]

#[path = "../data_doors.rs"]
mod doors;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doors::data_exception(bytes));
