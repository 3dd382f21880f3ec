//! The doors of the fuzz targets of couplings, without a fuzzer: the kept corpus (`fuzz/corpus`), cut and changed. Nothing panics.

#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "the corpus is files, and a test may read them"
)]

use std::path::PathBuf;

use proptest::prelude::*;

#[path = "../../../fuzz/between_hosts_doors.rs"]
mod between_hosts_doors;
#[path = "../../../fuzz/coupling_doors.rs"]
mod doors;

type Door = fn(&[u8]);

const DOORS: [(&str, Door); 4] = [
    ("coupling", doors::coupling),
    ("attach", doors::attach),
    ("between_hosts", between_hosts_doors::between_hosts),
    ("told", between_hosts_doors::told),
];

fn kept(name: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let files = std::fs::read_dir(folder.join(name)).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

#[test]
fn the_kept_corpus_passes() {
    for (name, door) in DOORS {
        let kept = kept(name);
        assert!(!kept.is_empty(), "no corpus for {name}");
        for bytes in kept {
            door(&bytes);
        }
    }
}

proptest! {
    #[test]
    fn changed_copies_pass(
        door in 0..DOORS.len(),
        which in any::<prop::sample::Index>(),
        places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let (name, door) = DOORS[door];
        let kept = kept(name);
        let mut bytes = which.get(&kept).clone();
        for (place, byte) in places {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        door(&bytes);
        bytes.truncate(cut.index(bytes.len()));
        door(&bytes);
    }
}
