//! How many file descriptors a server may need, and gets.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::limits::{DESCRIPTORS_BESIDE, Limits};

/// Takes as many file descriptors as the system lets this process have.
pub(crate) fn raise_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        let raised = Rlimit {
            current: maximum,
            maximum,
        };
        // What the process has then is looked at by `descriptors_note`.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// Whether the limits ask for more file descriptors than there are.
pub(crate) fn descriptors_note(limits: &Limits) -> Option<String> {
    // A connection has one descriptor, and one more towards the server behind a front.
    let wanted = limits
        .connections_max
        .saturating_add(limits.requests_max)
        .saturating_add(DESCRIPTORS_BESIDE);
    let have = getrlimit(Resource::Nofile).maximum?;
    (u64::try_from(wanted).unwrap_or(u64::MAX) > have).then(|| {
        format!(
            "limits: {wanted} file descriptors may be needed, this process gets {have}: raise LimitNOFILE, or lower connections_max"
        )
    })
}
