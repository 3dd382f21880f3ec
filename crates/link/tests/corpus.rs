//! The corpus that the fuzz targets keep (`fuzz/corpus`) goes through the same doors: nothing panics, and what has a second
//! form comes back from it.

#![expect(
    clippy::disallowed_methods,
    reason = "the corpus is files, and a test may read them"
)]

use std::path::Path;

#[path = "../../../fuzz/doors.rs"]
mod doors;

#[test]
fn the_corpus_goes_through_every_door() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    for (name, door) in doors::DOORS {
        let mut files = 0;
        for entry in std::fs::read_dir(corpus.join(name)).unwrap() {
            door(&std::fs::read(entry.unwrap().path()).unwrap());
            files += 1;
        }
        assert!(files >= 3, "{name}: {files}");
        door(b"");
    }
}
