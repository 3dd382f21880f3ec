//! What came of looking at files again.

/// What came of reading again what is kept current.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Renewal {
    /// Whether anything differs, so that everybody has to be judged again.
    pub changed: bool,
    /// What could not be read, one sentence each. Its last good state is kept; its administrator must act.
    pub faults: Vec<String>,
}
