//! Programs in C and Fortran, compiled against the library.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A folder that goes with the test.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("exoskel-c-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub(crate) fn compile_c(source: &str, program: &Path) {
    let strict = ["-Wall", "-Wextra", "-Werror", "-std=c99"];
    compile("cc", &strict, &[source], program);
}

pub(crate) fn compile(compiler: &str, options: &[&str], sources: &[&str], program: &Path) {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The library stands beside the test's own file.
    let test = std::env::current_exe().unwrap();
    let libraries = test.parent().unwrap();
    let done = Command::new(compiler)
        .args(options)
        .arg("-o")
        .arg(program)
        .arg(format!("-I{}", own.join("include").display()))
        .args(sources.iter().map(|source| own.join(source)))
        .arg(format!("-L{}", libraries.display()))
        // What Cargo says of other folders doesn't count: an older library may stand there.
        .arg("-Wl,--disable-new-dtags")
        .arg(format!("-Wl,-rpath,{}", libraries.display()))
        .arg("-lexoskel")
        .status()
        .unwrap();
    assert!(done.success(), "{compiler} {sources:?}");
}
