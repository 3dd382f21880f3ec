//! A run with a journal as Python sees it: its outcomes go to a sink of Python's, each exactly once.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use exoskel_journal::{
    DatabaseError, Delivery, EARLY_RESULTS_MAX, EarlyResult, FileBackend, ItemNumbers, ItemOutcome,
    Journal, JournalError, ResultSink, RunTexts,
};
use exoskel_net::fork::Owned;
use exoskel_net::payload::{Format, Record, RecordReader, RecordWriter, get_varint, put_varint};
use exoskel_net::result_queue::Origin;
use pyo3::exceptions::{PyException, PyMemoryError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{self, ExceptionKind, raise};
use crate::fork;
use crate::stream::value_of;

/// Permission bits by which others than the owner change a file.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The outcome is the result of the item whose turn it is.
pub(crate) const NOW: u8 = 0;

/// It is that of a later item, as it came.
pub(crate) const EARLY: u8 = 1;

/// It is an exception, and the run goes on without a result.
pub(crate) const SKIPPED: u8 = 2;

/// There is none yet; what came before should not wait for it.
pub(crate) const PAUSE: u8 = 3;

/// What the system says if it lacks something, or a device fails. Another result would fare no better, and the same one may later. Other
/// errors of files may come from the name that a result has.
const MACHINE_FAULTS: [i32; 9] = [
    libc::ENOSPC,
    libc::EDQUOT,
    libc::EIO,
    libc::EROFS,
    libc::ENOMEM,
    libc::EMFILE,
    libc::ENFILE,
    libc::EPIPE,
    libc::ESTALE,
];

/// A run with a journal in a file, which nobody else has as long as this one does.
#[pyclass(frozen, name = "Run")]
pub(crate) struct JournalledRun {
    path: PathBuf,
    running: Owned<Mutex<Running>>,
    next: AtomicU64,
    /// Whether outcomes wait to be committed.
    has_group: AtomicBool,
    numbers: Arc<ItemNumbers>,
    /// Outcomes come in order, and items have any number of them.
    is_ordered: bool,
    /// Whether the run had come to its end when the journal was opened.
    was_finished: bool,
    /// Items without a result are left out.
    skips: bool,
    began: Instant,
}

struct Running {
    delivery: Option<Delivery>,
    sink: Option<PythonSink>,
}

impl JournalledRun {
    /// The item whose turn it is.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Which item each of the stream is.
    pub(crate) fn numbers(&self) -> &Arc<ItemNumbers> {
        &self.numbers
    }

    /// Whether outcomes wait to be committed.
    pub(crate) fn has_group(&self) -> bool {
        self.has_group.load(Ordering::Relaxed)
    }

    /// Whether outcomes come in order, and items have any number of them.
    pub(crate) fn is_ordered(&self) -> bool {
        self.is_ordered
    }

    /// Whether an item is not too far after the one whose turn it is.
    pub(crate) fn may_run(&self, item: u64) -> bool {
        self.is_ordered || item < self.next().saturating_add(EARLY_RESULTS_MAX)
    }

    fn running(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, Running>> {
        let running = fork::own(py, &self.running)?.try_lock();
        running.map_err(|_| PyValueError::new_err("this run is used by another thread"))
    }

    fn with<T>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Delivery, &mut PythonSink) -> Result<T, RunFailure>,
    ) -> PyResult<T> {
        let mut running = self.running(py)?;
        let Running { delivery, sink } = &mut *running;
        let (Some(open), Some(sink)) = (delivery.as_mut(), sink) else {
            return Err(PyValueError::new_err("the run is closed"));
        };
        let done = work(open, sink);
        self.next.store(open.next(), Ordering::Relaxed);
        self.has_group.store(open.has_group(), Ordering::Relaxed);
        done.map_err(|failure| {
            // The sink may hold half a result, which must never be committed.
            *delivery = None;
            match failure {
                RunFailure::Sink(error) => error,
                RunFailure::Journal(error) => of_journal(py, error, &self.path),
            }
        })
    }
}

#[pymethods]
impl JournalledRun {
    /// Opens a journal, or begins one where `position` says that the sink is. Nobody else has the journal when that is asked, and only a journal that is
    /// begun asks. `texts` say what program, source and sink are.
    /// Where it `is_ordered`, outcomes come in order, and items have any number of them.
    #[new]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        texts: (String, String, String),
        position: Py<PyAny>,
        skips: bool,
        is_ordered: bool,
    ) -> PyResult<Self> {
        let JournalFile {
            disk,
            opened,
            is_new,
        } = JournalFile::open(py, &path)?;
        let (program, source, sink) = texts;
        let texts = RunTexts {
            program,
            source,
            sink,
        };
        // Only a journal that is begun asks for it: a run that is refused has not touched the sink.
        let position =
            || Python::attach(|py| Ok::<Vec<u8>, RunFailure>(position.call0(py)?.extract(py)?));
        let found = py.detach(|| -> Result<Delivery, RunFailure> {
            let (journal, state) = Journal::open(disk, &texts, position)?;
            Ok(Delivery::new(journal, state, skips)?)
        });
        let delivery = found.map_err(|failure| {
            leave(&opened, is_new, &path);
            match failure {
                RunFailure::Sink(error) => error,
                RunFailure::Journal(error) => of_journal(py, error, &path),
            }
        })?;
        // It holds results. Who let others read it has done so by mistake.
        close_to_others(&opened).map_err(|error| of_file(py, error, &path))?;
        Ok(Self {
            path,
            is_ordered,
            was_finished: delivery.state().is_finished,
            next: AtomicU64::new(delivery.next()),
            has_group: AtomicBool::new(false),
            numbers: Arc::new(delivery.numbers().clone()),
            running: Owned::new(Mutex::new(Running {
                delivery: Some(delivery),
                sink: None,
            }))?,
            skips,
            began: Instant::now(),
        })
    }

    /// Where the sink was at the last commit: it is cut back to there.
    #[getter]
    fn position<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let running = self.running(py)?;
        let state = running.delivery.as_ref().map(Delivery::state);
        let position = state.map_or(&[][..], |state| &state.position);
        Ok(PyBytes::new(py, position))
    }

    /// Whether an earlier run has come to the end.
    #[getter]
    fn is_finished(&self) -> bool {
        self.was_finished
    }

    /// The item whose turn it is: all before it have their results in the sink, or none.
    #[getter(next)]
    fn next_item(&self) -> u64 {
        self.next()
    }

    /// How many results these have in the sink.
    #[getter]
    fn results(&self, py: Python<'_>) -> PyResult<u64> {
        let running = self.running(py)?;
        let state = running.delivery.as_ref().map(Delivery::state);
        Ok(state.map_or(0, |state| state.results))
    }

    /// Whether the sink holds a part of the results of an item, so that nothing can be committed.
    #[getter]
    fn is_amid(&self, py: Python<'_>) -> PyResult<bool> {
        let running = self.running(py)?;
        Ok(running.delivery.as_ref().is_some_and(Delivery::is_amid))
    }

    /// How many results are left out.
    #[getter]
    fn skipped(&self, py: Python<'_>) -> PyResult<u64> {
        let running = self.running(py)?;
        Ok(running.delivery.as_ref().map_or(0, Delivery::skipped))
    }

    /// The later items whose results are in the journal, in order.
    #[getter]
    fn early(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        let running = self.running(py)?;
        let items = running.delivery.iter().flat_map(Delivery::stored);
        Ok(items.collect())
    }

    /// Whether nothing can be taken or committed any more.
    #[getter]
    fn is_closed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.running(py)?.delivery.is_none())
    }

    /// Takes the sink: the functions that write a result and that make all durable, which says where the sink is then.
    fn start(&self, py: Python<'_>, write: Py<PyAny>, sync: Py<PyAny>) -> PyResult<()> {
        self.running(py)?.sink = Some(PythonSink {
            write,
            sync,
            skips: self.skips,
        });
        self.with(py, |delivery, sink| delivery.follow_up(sink))
    }

    /// Takes an outcome, as `MapStream` gives it. Says whether it is time to commit. In order, `item` is how many items have all of their
    /// outcomes by this one.
    fn take(&self, py: Python<'_>, item: u64, kind: u8, outcome: Py<PyAny>) -> PyResult<bool> {
        let now = self.began.elapsed();
        if self.is_ordered {
            return self.with(py, |delivery, sink| {
                match kind {
                    NOW => delivery.append(sink, Some(outcome))?,
                    SKIPPED => delivery.append(sink, None)?,
                    _ => {}
                }
                Ok(delivery.end_items(item, now)?)
            });
        }
        let turn = match kind {
            NOW => ItemOutcome::Now(outcome),
            EARLY => ItemOutcome::Early(early_of(outcome.extract(py)?)),
            SKIPPED => ItemOutcome::Skipped,
            _ => return self.with(py, |delivery, _| Ok(delivery.is_due(now))),
        };
        self.with(py, |delivery, sink| delivery.take(sink, item, turn, now))
    }

    /// Makes all outcomes so far durable.
    fn commit(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |delivery, sink| py.detach(|| delivery.commit(sink)))
    }

    /// Makes the end durable: there are no more items.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |delivery, sink| py.detach(|| delivery.finish(sink)))
    }

    /// Lets the journal go. What was not committed is made again by who opens it next.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let mut running = self.running(py)?;
        let (delivery, sink) = (running.delivery.take(), running.sink.take());
        drop(running);
        py.detach(|| drop(delivery));
        drop(sink);
        Ok(())
    }
}

/// The file of a journal, which nobody else has.
struct JournalFile {
    disk: FileBackend,
    /// The same one.
    opened: File,
    is_new: bool,
}

impl JournalFile {
    /// Opens it, or makes it. What is in it is believed: it must be of this account, and nobody else may have written to it.
    fn open(py: Python<'_>, path: &Path) -> PyResult<Self> {
        let refused = |text| raise(py, ExceptionKind::Journal, text);
        let failed = |error| of_file(py, error, path);
        if let Some(why) = why_not_at(path) {
            return Err(refused(why));
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600);
        let (file, is_new) = match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = options.create(true).truncate(false).open(path);
                (made.map_err(failed)?, true)
            }
            found => (found.map_err(failed)?, false),
        };
        let facts = file.metadata().map_err(failed)?;
        if !facts.is_file() {
            return Err(failed(io::ErrorKind::InvalidInput.into()));
        }
        if let Some(why) = why_not_believed(path, &facts) {
            return Err(refused(why));
        }
        if is_new {
            // Else a machine that loses its power may lose the name.
            let folder = path.parent().filter(|parent| *parent != Path::new(""));
            let folder = folder.unwrap_or_else(|| Path::new("."));
            let synced = File::open(folder).and_then(|folder| folder.sync_all());
            synced.map_err(|error| of_file(py, error, folder))?;
        }
        let opened = file.try_clone().map_err(failed)?;
        let in_use = || {
            format!(
                "the journal {} is used by another run at this moment; wait for that one, or give each run a journal and a sink of its own",
                path.display()
            )
        };
        let disk = FileBackend::new(file).map_err(|fault| {
            refused(match fault {
                // The only other fault is one of the system's.
                DatabaseError::DatabaseAlreadyOpen => in_use(),
                fault => format!("the journal {} can't be locked: {fault}", path.display()),
            })
        })?;
        // Somebody who had it before may have removed it.
        let is_there = std::fs::metadata(path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (facts.dev(), facts.ino()));
        match is_there {
            true => Ok(Self {
                disk,
                opened,
                is_new,
            }),
            false => Err(refused(in_use())),
        }
    }
}

/// Removes a journal that was made for nothing: it is new, and what it begins with was not written, which comes last.
fn leave(opened: &File, is_new: bool, path: &Path) {
    let is_unbegun = || {
        let mut begin = [0; 1];
        let read = opened.read_at(&mut begin, 0);
        read.is_ok_and(|_| begin == [0])
    };
    if is_new && is_unbegun() {
        // One that stays is no harm.
        let _ = std::fs::remove_file(path);
    }
}

/// Whether somebody else says where a journal is.
fn why_not_at(path: &Path) -> Option<String> {
    let facts = std::fs::symlink_metadata(path).ok()?;
    let leads_astray = facts.is_symlink() && !is_trusted(facts.uid());
    leads_astray.then(|| {
        format!(
            "{} is a link that belongs to account {}, expected a file or a link of this account",
            path.display(),
            facts.uid()
        )
    })
}

/// Whether somebody else may have written what is in a journal.
fn why_not_believed(path: &Path, facts: &Metadata) -> Option<String> {
    let path = path.display();
    if !is_trusted(facts.uid()) {
        let owner = facts.uid();
        return Some(format!(
            "the journal {path} belongs to account {owner}, expected this one: what is in it may be anybody's"
        ));
    }
    let mode = facts.mode() & 0o7777;
    (mode & WRITABLE_BY_OTHERS != 0).then(|| {
        format!(
            "others can write to the journal {path} (mode {mode:04o}, expected 0600): results in it may be anybody's. If nobody else uses this \
             machine, run chmod 600 {path}; otherwise remove it and what the run has written to begin anew"
        )
    })
}

/// This account, and root, who can do everything anyway.
fn is_trusted(owner: u32) -> bool {
    // SAFETY: it only returns a number.
    owner == 0 || owner == unsafe { libc::geteuid() }
}

fn close_to_others(file: &File) -> io::Result<()> {
    match file.metadata()?.permissions().mode() & 0o077 {
        0 => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(0o600)),
    }
}

/// The exception of what is wrong with a journal.
fn of_journal(py: Python<'_>, error: JournalError, path: &Path) -> PyErr {
    match error {
        JournalError::Disk(error) if error.raw_os_error().is_some() => of_file(py, error, path),
        error => error::journal(py, error),
    }
}

/// The exception that says which file it is, too.
fn of_file(py: Python<'_>, error: io::Error, path: &Path) -> PyErr {
    match error.raw_os_error() {
        Some(number) => {
            let error = io::Error::from_raw_os_error(number);
            let text = error.to_string();
            let text = text
                .split(" (os error")
                .next()
                .unwrap_or_default()
                .to_owned();
            PyErr::from_type(
                py.get_type::<PyOSError>(),
                (number, text, path.as_os_str().to_owned()),
            )
        }
        None => PyValueError::new_err(format!(
            "got {} as a journal, expected a file",
            path.display()
        )),
    }
}

/// A sink of Python's.
struct PythonSink {
    write: Py<PyAny>,
    sync: Py<PyAny>,
    /// Items without a result are left out.
    skips: bool,
}

/// What goes wrong with it, or with the journal.
enum RunFailure {
    Sink(PyErr),
    Journal(JournalError),
}

impl From<PyErr> for RunFailure {
    fn from(error: PyErr) -> Self {
        Self::Sink(error)
    }
}

impl From<JournalError> for RunFailure {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl ResultSink for PythonSink {
    type Value = Py<PyAny>;
    type Error = RunFailure;

    fn write(&mut self, index: u64, value: Py<PyAny>) -> Result<(), RunFailure> {
        Python::attach(|py| {
            self.write.call1(py, (index, value))?;
            Ok(())
        })
    }

    fn read_early(
        &mut self,
        index: u64,
        early: EarlyResult,
    ) -> Result<Option<Py<PyAny>>, RunFailure> {
        Python::attach(|py| {
            let (origin, record) = read_early(early).ok_or_else(|| {
                let text = format!("the journal holds a result of item {index} that can't be read");
                raise(py, ExceptionKind::Journal, text)
            })?;
            match value_of(py, record, &origin, index)? {
                Ok(value) => Ok(Some(value.unbind())),
                // It came from somebody whose results may be refused, and is as good as an exception.
                Err(_) if self.skips => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn blames_result(error: &RunFailure) -> bool {
        match error {
            RunFailure::Sink(error) => Python::attach(|py| !blames_machine(py, error)),
            RunFailure::Journal(_) => true,
        }
    }

    fn sync(&mut self) -> Result<Vec<u8>, RunFailure> {
        Ok(Python::attach(|py| {
            self.sync.call0(py)?.extract::<Vec<u8>>(py)
        })?)
    }
}

/// Whether an exception has nothing to do with the result that was to be written: a key was pressed, or the machine lacks something.
fn blames_machine(py: Python<'_>, error: &PyErr) -> bool {
    if !error.is_instance_of::<PyException>(py) || error.is_instance_of::<PyMemoryError>(py) {
        return true;
    }
    if !error.is_instance_of::<PyOSError>(py) {
        return false;
    }
    let number = error.value(py).getattr("errno").ok();
    let number = number.and_then(|number| number.extract::<i32>().ok());
    number.is_some_and(|number| MACHINE_FAULTS.contains(&number))
}

/// A result as it is kept until its turn: whether it is restricted, who made it, its record, and its bulk parts.
pub(crate) fn early_record(origin: &Origin, record: Record) -> Vec<u8> {
    let mut kept = BytesMut::new();
    kept.extend_from_slice(&[u8::from(!origin.is_trusted())]);
    put_sized(&mut kept, origin.worker.as_bytes());
    let mut writer = RecordWriter::default();
    let bulk = record.bulk.into_iter().map(Bytes::from);
    writer.push(record.format, false, &record.body, &record.splices, bulk);
    let (_, records, bulk) = writer.take();
    put_sized(&mut kept, &records);
    for part in bulk {
        put_sized(&mut kept, &part);
    }
    kept.into()
}

fn early_of(mut kept: Vec<u8>) -> EarlyResult {
    let is_restricted = kept.first() != Some(&0);
    if !kept.is_empty() {
        kept.remove(0);
    }
    EarlyResult {
        is_skipped: false,
        is_restricted,
        record: kept,
    }
}

fn read_early(early: EarlyResult) -> Option<(Origin, Record)> {
    let format = match early.is_restricted {
        true => Format::Data,
        false => Format::Pickle,
    };
    let kept = Bytes::from(early.record);
    let mut position = 0;
    let worker = take_sized(&kept, &mut position)?;
    let records = take_sized(&kept, &mut position)?;
    let mut bulk = Vec::new();
    while position < kept.len() {
        bulk.push(take_sized(&kept, &mut position)?.to_vec());
    }
    let origin = Origin {
        worker: String::from_utf8_lossy(&worker).into_owned(),
        format,
    };
    let record = RecordReader::new(records, bulk).next_record().ok()??;
    Some((origin, record))
}

fn put_sized(out: &mut BytesMut, part: &[u8]) {
    put_varint(out, part.len() as u64);
    out.extend_from_slice(part);
}

fn take_sized(kept: &Bytes, position: &mut usize) -> Option<Bytes> {
    let length = usize::try_from(get_varint(kept, position).ok()?).ok()?;
    let end = position
        .checked_add(length)
        .filter(|end| *end <= kept.len())?;
    let part = kept.slice(*position..end);
    *position = end;
    Some(part)
}
