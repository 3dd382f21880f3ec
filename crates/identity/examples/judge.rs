//! Verdicts for other programs: what this crate makes of the cases of `vectors/identity`, or of a trust directory.
//!
//! `cargo run -p exoskel-identity --example judge -- vectors` prints, for each case by name, `accepted` and either `reason` or
//! what is known about the peer. `... -- trust DIRECTORY` prints what of a trust directory can be used. `make test-peers` holds the former against other verifiers, and loads the authorities of the IGTF
//! with the latter. One process answers for all cases: `exoskel proxy info` would take a start of Python for each of the
//! hundreds, and has no word for a directory that only has to load.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a tool, not the sans-IO library: it reads files and arguments, and stops when it cannot"
)]

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::path::Path;

use exoskel_identity::{Fqan, ProxyKind, TrustReport, TrustStore, VerifiedIdentity};
use serde_json::{Value, json};

#[allow(
    dead_code,
    reason = "the tests look at what is expected, which is not asked here"
)]
#[path = "../tests/vectors/manifest.rs"]
mod manifest;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let found = match *words {
        ["vectors"] => verdicts(),
        ["trust", directory] => {
            let files = manifest::files(Path::new(directory));
            usable(&TrustStore::load(files, Vec::new(), None, 1).1)
        }
        _ => return Err("got other arguments, expected: vectors, or: trust DIRECTORY".into()),
    };
    println!("{found:#}");
    Ok(())
}

fn verdicts() -> Value {
    let vectors = &*manifest::VECTORS;
    let judged = vectors.cases().iter().map(|case| {
        let verdict = match vectors.judge(case) {
            Ok(peer) => known(&peer),
            Err(error) => json!({ "accepted": false, "reason": error.to_string() }),
        };
        (case.name.clone(), verdict)
    });
    json!(judged.collect::<BTreeMap<_, _>>())
}

fn known(peer: &VerifiedIdentity) -> Value {
    let proxy = peer.proxy();
    json!({
        "accepted": true,
        "identity": peer.subject().slash(),
        "type": match proxy.map(|proxy| proxy.kind) {
            None => "end-entity",
            Some(ProxyKind::Rfc3820) => "rfc3820",
            Some(ProxyKind::Draft) => "draft",
            Some(ProxyKind::Legacy) => "legacy",
        },
        "depth": proxy.map_or(0, |proxy| proxy.depth),
        "limited": proxy.is_some_and(|proxy| proxy.limited),
        "independent": proxy.is_some_and(|proxy| proxy.independent),
        "vo": peer.vo(),
        "fqans": peer.fqans().map(Fqan::to_string).collect::<Vec<_>>(),
        "attribute_faults": peer.attribute_faults().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "expires": peer.not_after().as_secs(),
    })
}

fn usable(report: &TrustReport) -> Value {
    let authorities: Vec<_> = report
        .authorities
        .iter()
        .map(|authority| {
            json!({
                "subject": authority.subject.slash(),
                "files": authority.files,
                "key": authority.key,
                "usable": authority.is_usable,
                "weaknesses": authority.weaknesses,
                "signing_policy": authority.has_signing_policy,
                "namespaces": authority.has_namespaces,
            })
        })
        .collect();
    let bad_files: Vec<_> = report
        .bad_files
        .iter()
        .map(|file| json!({ "name": file.name, "reason": file.reason.to_string() }))
        .collect();
    json!({ "authorities": authorities, "bad_files": bad_files })
}
