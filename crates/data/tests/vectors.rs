//! `vectors/data.json`, made by a second implementation: what is good is taken, what is bad is refused for the same reason.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the vectors are a file, and a test may read it"
)]

use exoskel_data::{Checked, CheckedException, Fault};
use serde_json::Value;

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors/data.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn bytes(hexadecimal: &Value) -> Vec<u8> {
    let digits = hexadecimal.as_str().unwrap_or_default();
    (0..digits.len())
        .step_by(2)
        .map(|start| u8::from_str_radix(&digits[start..start + 2], 16).unwrap())
        .collect()
}

fn body(case: &Value) -> Vec<u8> {
    let again = bytes(&case["again"]).repeat(case["times"].as_u64().unwrap_or(0) as usize);
    [bytes(&case["body"]), again].concat()
}

fn parts(case: &Value) -> Vec<Vec<u8>> {
    case["parts"]
        .as_array()
        .unwrap()
        .iter()
        .map(bytes)
        .collect()
}

fn kind(fault: &Fault) -> &'static str {
    match fault {
        Fault::Malformed { .. } => "malformed",
        Fault::Limit { .. } => "limit",
        Fault::Memory { .. } => "memory",
        Fault::Key { .. } => "key",
    }
}

#[test]
fn good_values_are_taken() {
    for case in vectors()["good"].as_array().unwrap() {
        let got = Checked::new(&body(case), &parts(case)).map(|_| ());
        assert_eq!(got, Ok(()), "{}", case["name"]);
    }
}

/// What breaks no rule of the format is refused when objects are made of it: that is the glue's part.
#[test]
fn bad_values_are_refused() {
    for case in vectors()["bad"].as_array().unwrap() {
        let body = body(case);
        let got = Checked::new(&body, &parts(case)).err();
        let name = &case["name"];
        match case["refused"].as_str().unwrap() {
            "value" => assert_eq!(got, None, "{name}"),
            // A count that lies may be found by its memory, before the bytes end.
            _ if name == "huge list" => assert!(got.is_some()),
            expected => assert_eq!(got.as_ref().map(kind), Some(expected), "{name}: {got:?}"),
        }
    }
}

#[test]
fn exceptions_are_taken_or_refused() {
    for case in vectors()["exceptions"].as_array().unwrap() {
        let body = body(case);
        let got = CheckedException::new(&body);
        let fault = got.as_ref().err().map(kind);
        assert_eq!(fault, case["refused"].as_str(), "{}: {got:?}", case["name"]);
    }
}
