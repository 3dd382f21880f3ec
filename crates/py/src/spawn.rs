//! Starts a program without a copy of this process: its child uses this one's memory until it executes the program.
//!
//! A fork copies the tables of all pages, and each page that the child writes to: for a process that is an interpreter of Python, most of
//! what a start costs. So all that can be made before is made before, and the child only asks the system.

use std::ffi::{CStr, CString};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};
use std::path::PathBuf;
use std::{fs, ptr};

use exoskel_confinement::Confinement;
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;

use crate::confinement::AllowedUse;

/// What the child's calls may take of memory. Pages that it doesn't need are none.
const STACK_BYTES: usize = 1 << 20;

/// What Python has this process ignore or handle, and programs expect otherwise.
const SIGNALS: [libc::c_int; 4] = [libc::SIGINT, libc::SIGCHLD, libc::SIGPIPE, libc::SIGXFSZ];

/// What a shell says of a program that can't be executed, and of one that isn't there.
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// A program, and what it finds.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct ProgramStart {
    words: Vec<Vec<u8>>,
    /// Where the program may be, in this order.
    places: Vec<Vec<u8>>,
    /// Variables, as ``NAME=VALUE``.
    environment: Vec<Vec<u8>>,
    /// The first of these that it can enter is where it begins.
    directories: Vec<Vec<u8>>,
    /// Descriptors, each with the number that it gets. All others are closed.
    descriptors: Vec<(RawFd, RawFd)>,
    descriptors_max: u64,
    /// For those who list processes, until the program runs.
    name: String,
    sandbox: Option<ProgramSandbox>,
}

/// What holds a program.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ProgramSandbox {
    /// Control groups.
    groups: Vec<PathBuf>,
    allowed: AllowedUse,
    /// Over this descriptor's number in the program its agent is told what holds it, before it runs.
    told: RawFd,
    /// What is told besides.
    also: Vec<String>,
    /// Where its node is reached.
    reached_at: Vec<String>,
}

/// The program is executed, or why it is not: what is to be printed, and the code with which its process ends.
type Spawned = (i32, Option<(String, i32)>);

/// Starts a program. Returns its process, and why it has ended before the program could run, if so.
///
/// # Errors
/// ``OSError`` when there can be no other process; ``ValueError`` for a zero byte in a text.
#[pyfunction]
pub(crate) fn spawn_program(start: ProgramStart) -> PyResult<Spawned> {
    let child = ProgramChild::new(start)?;
    // SAFETY: this process has one thread, which waits until the child has executed its program or has ended.
    unsafe { child.spawn() }.map_err(|error| match error.raw_os_error() {
        Some(number) => PyOSError::new_err((number, error.to_string())),
        None => error.into(),
    })
}

/// All that a child needs, made before there is one. What it makes itself and still has when it executes its program is lost to this process.
struct ProgramChild {
    words: TextList,
    places: Vec<CString>,
    environment: TextList,
    directories: Vec<CString>,
    descriptors: Vec<(RawFd, RawFd)>,
    descriptors_max: u64,
    name: CString,
    sandbox: Option<ProgramHold>,
    parent: i32,
    failure: Option<(String, i32)>,
}

/// TextList as the kernel takes them.
struct TextList {
    texts: Vec<CString>,
    /// One to each, and one to nothing behind them.
    pointers: Vec<*const libc::c_char>,
}

impl TextList {
    fn new(texts: Vec<CString>) -> Self {
        let pointers = texts.iter().map(|text| text.as_c_str()).map(CStr::as_ptr);
        let pointers = pointers.chain([ptr::null()]).collect();
        Self { texts, pointers }
    }
}

struct ProgramHold {
    groups: Vec<PathBuf>,
    confinement: Confinement,
    told: RawFd,
    also: Vec<String>,
    reached_at: Vec<String>,
}

impl ProgramChild {
    fn new(start: ProgramStart) -> PyResult<Self> {
        let texts = |texts: Vec<Vec<u8>>| -> PyResult<Vec<CString>> {
            let texts = texts.into_iter().map(CString::new);
            Ok(texts.collect::<Result<_, _>>()?)
        };
        let sandbox = start.sandbox.map(|sandbox| ProgramHold {
            groups: sandbox.groups,
            confinement: sandbox.allowed.into(),
            told: sandbox.told,
            also: sandbox.also,
            reached_at: sandbox.reached_at,
        });
        Ok(Self {
            words: TextList::new(texts(start.words)?),
            places: texts(start.places)?,
            environment: TextList::new(texts(start.environment)?),
            directories: texts(start.directories)?,
            descriptors: start.descriptors,
            descriptors_max: start.descriptors_max,
            name: CString::new(start.name)?,
            sandbox,
            parent: rustix::process::getpid().as_raw_nonzero().get(),
            failure: None,
        })
    }

    /// Returns when the program is executed, or its process has failed before.
    ///
    /// # Safety
    /// This process must have one thread.
    unsafe fn spawn(mut self) -> io::Result<Spawned> {
        let mut stack = Stack::new()?;
        // SAFETY: sets of signals are plain numbers.
        let mut all: libc::sigset_t = unsafe { std::mem::zeroed() };
        let mut before = all;
        // No handler of this process may run in the child, which has its memory.
        // SAFETY: both sets are this function's.
        unsafe {
            libc::sigfillset(&raw mut all);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        }
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let own: *mut Self = &raw mut self;
        // SAFETY: the child has a stack of its own. This thread, the only one, goes on when the child uses its memory no more, so nothing is
        // used by both at a time.
        let process = unsafe { libc::clone(run, stack.top(), flags, own.cast()) };
        let error = io::Error::last_os_error();
        // SAFETY: as above.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &raw const before, ptr::null_mut()) };
        match process {
            -1 => Err(error),
            process => Ok((process, self.failure.take())),
        }
    }

    /// What the child does; it comes back only if it can't.
    fn become_program(&self) -> Result<(), (String, i32)> {
        let failed =
            |error: io::Error| (format!("can't start it: {}", said(&error)), NOT_EXECUTABLE);
        self.leave_parent().map_err(failed)?;
        self.place_descriptors().map_err(failed)?;
        let is_there = exoskel_net::descendants::follow_parent(self.parent, &self.name);
        if !is_there.map_err(failed)? {
            return Err((String::new(), 1));
        }
        self.enter_directory()?;
        if let Some(held) = &self.sandbox {
            held.confine()
                .map_err(|why| (format!("can't be confined: {why}"), NOT_EXECUTABLE))?;
        }
        Err(self.execute())
    }

    /// Makes a session of its own, where signals mean what programs expect.
    fn leave_parent(&self) -> io::Result<()> {
        rustix::process::setsid()?;
        for signal in SIGNALS {
            // SAFETY: the child has a table of its own.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        // SAFETY: an empty set is all zeroes.
        unsafe {
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut none);
            libc::sigprocmask(libc::SIG_SETMASK, &raw const none, ptr::null_mut());
        }
        Ok(())
    }

    fn place_descriptors(&self) -> io::Result<()> {
        let places = self.descriptors.iter().map(|&(_, place)| place);
        let free = places.max().unwrap_or(2) + 1;
        // Out of the way first: one may have the number that another is to get.
        let mut away = [(0, 0); DESCRIPTORS_MAX];
        let away = away
            .get_mut(..self.descriptors.len())
            .ok_or(io::ErrorKind::ArgumentListTooLong)?;
        for (kept, &(from, to)) in away.iter_mut().zip(&self.descriptors) {
            // SAFETY: plain numbers.
            let copy = unsafe { libc::fcntl(from, libc::F_DUPFD_CLOEXEC, free) };
            *kept = (checked(copy)?, to);
        }
        for &mut (from, to) in away {
            // SAFETY: plain numbers.
            checked(unsafe { libc::dup2(from, to) })?;
        }
        // SAFETY: plain numbers; what is closed belongs to this process's copy of the table.
        checked(unsafe { libc::close_range(free.cast_unsigned(), u32::MAX, 0) })?;
        let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        limit.current = Some(self.descriptors_max);
        rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?;
        Ok(())
    }

    fn enter_directory(&self) -> Result<(), (String, i32)> {
        let mut why = None;
        for directory in &self.directories {
            match rustix::process::chdir(directory.as_c_str()) {
                Ok(()) => return Ok(()),
                Err(error) => {
                    why.get_or_insert((directory, error));
                }
            }
        }
        why.map_or(Ok(()), |(directory, error)| {
            let error = said(&error.into());
            let shown = directory.to_string_lossy();
            Err((format!("can't enter {shown}: {error}"), NOT_EXECUTABLE))
        })
    }

    /// Comes back with the reason why it can't: of places where there is something, before those where there is nothing.
    fn execute(&self) -> (String, i32) {
        let (words, environment) = (&self.words.pointers, &self.environment.pointers);
        let mut reason = io::Error::from_raw_os_error(libc::ENOENT);
        for place in &self.places {
            // SAFETY: all are texts that end with a zero byte, in lists that end with a null pointer.
            unsafe { libc::execve(place.as_ptr(), words.as_ptr(), environment.as_ptr()) };
            let error = io::Error::last_os_error();
            let is_absent = matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR));
            if !is_absent && reason.raw_os_error() == Some(libc::ENOENT) {
                reason = error;
            }
        }
        let code = match reason.raw_os_error() {
            Some(libc::ENOENT) => NOT_FOUND,
            _ => NOT_EXECUTABLE,
        };
        let name = self.words.texts.first().map(|name| name.to_string_lossy());
        let name = name.unwrap_or_default();
        (format!("can't execute {name}: {}", said(&reason)), code)
    }
}

impl ProgramHold {
    fn confine(&self) -> Result<(), String> {
        for group in &self.groups {
            fs::write(group.join("cgroup.procs"), "0")
                .map_err(|error| format!("can't enter {}: {}", group.display(), said(&error)))?;
        }
        let mut held = self
            .confinement
            .apply()
            .map_err(|error| error.to_string())?;
        held.extend(self.also.iter().cloned());
        let word = serde_json::json!({"confined": held, "places": self.reached_at}).to_string();
        let length = u32::try_from(word.len()).map_err(|error| error.to_string())?;
        // SAFETY: it is open, and stays so.
        let mut agent = ManuallyDrop::new(unsafe { fs::File::from_raw_fd(self.told) });
        let whole = [&length.to_be_bytes(), word.as_bytes()].concat();
        agent.write_all(&whole).map_err(|error| said(&error))
    }
}

/// More than any program gets.
const DESCRIPTORS_MAX: usize = 64;

/// A stack that grows downwards, below it a page that nobody may use.
struct Stack(*mut libc::c_void);

impl Stack {
    fn new() -> io::Result<Self> {
        let (access, kind) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE,
        );
        // SAFETY: new memory, wherever there is some.
        let memory = unsafe { libc::mmap(ptr::null_mut(), STACK_BYTES, access, kind, -1, 0) };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Self(memory);
        // SAFETY: its lowest page.
        checked(unsafe { libc::mprotect(memory, 4096, libc::PROT_NONE) })?;
        Ok(stack)
    }

    fn top(&mut self) -> *mut libc::c_void {
        // SAFETY: one past its end, which is where such a stack begins.
        unsafe { self.0.byte_add(STACK_BYTES) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: it was made with this length, and nobody uses it any more.
        unsafe { libc::munmap(self.0, STACK_BYTES) };
    }
}

/// Where the child begins.
extern "C" fn run(child: *mut libc::c_void) -> libc::c_int {
    // SAFETY: it is what `spawn` has given, which waits.
    let child = unsafe { &mut *child.cast::<ProgramChild>() };
    // A panic must not go on into what has called this.
    let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| child.become_program()));
    let failure = match done {
        Ok(Err(failure)) => failure,
        Ok(Ok(())) | Err(_) => ("can't start it".to_owned(), NOT_EXECUTABLE),
    };
    let code = failure.1;
    child.failure = Some(failure);
    // SAFETY: it ends this process alone, without what the other would do at its end.
    unsafe { libc::_exit(code) }
}

fn checked(code: libc::c_int) -> io::Result<libc::c_int> {
    match code {
        -1 => Err(io::Error::last_os_error()),
        code => Ok(code),
    }
}

/// What the system says of an error, without its number.
fn said(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((said, _)) => said.to_owned(),
        None => text,
    }
}
