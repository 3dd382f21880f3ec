//! What came of looking at files again.

/// What came of reading again what is kept current.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewal {
    /// Whether anything differs, so that everybody has to be judged again.
    pub changed: bool,
    /// What differs, a phrase for each: "ban list /etc/exoskel/banned.txt".
    pub changes: Vec<String>,
    /// What could not be read, one sentence each, which says what counts instead. Its administrator must act.
    pub faults: Vec<String>,
    /// What is in force and refuses people whom nobody may have meant, one sentence each.
    pub warnings: Vec<String>,
}
