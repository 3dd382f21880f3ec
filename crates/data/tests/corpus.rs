//! The doors of the fuzz targets of plain data, without a fuzzer: the kept corpus (`fuzz/corpus`), changed copies of it, and noise. Nothing
//! panics, and what is taken comes back when it is written.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the corpus is files, and a test may read them"
)]

use std::path::Path;

use proptest::prelude::*;

#[path = "../../../fuzz/data_doors.rs"]
mod doors;

type Door = fn(&[u8]);

const DOORS: [(&str, Door); 2] = [
    ("data", doors::data),
    ("data_exception", doors::data_exception),
];

fn corpus(door: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let mut paths: Vec<_> = std::fs::read_dir(directory.join(door))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    paths
        .iter()
        .map(|path| std::fs::read(path).unwrap())
        .collect()
}

#[test]
fn the_corpus_goes_through_every_door() {
    for (name, door) in DOORS {
        let files = corpus(name);
        assert!(files.len() >= 3, "{name}: {}", files.len());
        for bytes in files {
            door(&bytes);
        }
    }
}

/// What happens to a file: a byte changes, a part is gone, a part stands there twice.
#[derive(Clone, Debug)]
enum Damage {
    Byte(u8),
    Cut(usize),
    Twice(usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => any::<u8>().prop_map(Damage::Byte),
        1 => (1..64_usize).prop_map(Damage::Cut),
        1 => (1..64_usize).prop_map(Damage::Twice),
    ]
}

fn damaged(bytes: &[u8], damages: &[(prop::sample::Index, Damage)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (place, damage) in damages {
        if bytes.is_empty() {
            break;
        }
        let start = place.index(bytes.len());
        match damage {
            Damage::Byte(byte) => bytes[start] = *byte,
            Damage::Cut(length) => {
                bytes.drain(start..bytes.len().min(start + length));
            }
            Damage::Twice(length) => {
                let part = bytes[start..bytes.len().min(start + length)].to_vec();
                bytes.splice(start..start, part);
            }
        }
    }
    bytes
}

proptest! {
    #[test]
    fn damaged_files_are_read_or_refused(
        which: prop::sample::Index,
        damages in prop::collection::vec((any::<prop::sample::Index>(), damage()), 1..5),
    ) {
        for (name, door) in DOORS {
            let files = corpus(name);
            let file = &files[which.index(files.len())];
            door(&damaged(file, &damages));
        }
    }

    #[test]
    fn noise_is_refused(bytes: Vec<u8>) {
        for (_, door) in DOORS {
            door(&bytes);
        }
    }
}
