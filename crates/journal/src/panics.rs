//! Panics of the store, which it has over pages that make no sense. Here they are answers like any other, and nobody is told of them twice.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::thread::Result;

thread_local! {
    /// Whether what panics on this thread is the store.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Lets the store do something. If it panics, that is the error, and is not written to standard error.
pub(crate) fn caught<T>(work: impl FnOnce() -> T) -> Result<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !IS_CAUGHT.get() {
                before(panic);
            }
        }));
    });
    let before = IS_CAUGHT.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    IS_CAUGHT.set(before);
    done
}
