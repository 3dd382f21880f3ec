//! Panics of the store, which it has over pages that make no sense. Here they are answers like any other, and nobody is told of them twice.

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::thread::Result;

/// What the store says, by a panic, of a file that is shorter than its head has it.
const IS_TOO_SHORT: &str = "raw_file_len()";

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

/// Whether a panic of the store is about the length of the file.
pub(crate) fn is_too_short(panic: &(dyn Any + Send)) -> bool {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.is_some_and(|text| text.contains(IS_TOO_SHORT))
}
