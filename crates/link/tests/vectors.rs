//! The files of `vectors/` are what this implementation makes now; the Python tests check that another one agrees.

#[path = "../examples/vectors.rs"]
mod made;

#[test]
fn the_files_are_up_to_date() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../vectors");
    for (name, content) in made::files() {
        let path = std::path::Path::new(folder).join(name);
        #[allow(clippy::disallowed_methods, reason = "a test reads its expectations")]
        let kept = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            kept == content,
            "{name} is not what is made now: run `cargo run -p exoskel-link --example vectors` if the protocol changed"
        );
    }
}
