#![no_main]

#[path = "../between_hosts_doors.rs"]
mod doors;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| doors::between_hosts(bytes));
