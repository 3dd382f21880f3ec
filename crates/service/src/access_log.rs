//! One line of JSON for each HTTP request.
//!
//! Requests never wait for the disk, unlike decisions, which the audit trail keeps: what the disk can't take is counted.

use std::fmt;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use http::Method;
use rustls_pki_types::UnixTime;

use crate::audit::timestamp;
use crate::limits::{ACCESS_BYTES_MAX, ACCESS_GATHER_TIME};
use crate::log_file::{LogSink, LogTarget, add_string};
use crate::server_state::ServerState;

/// What a request gets that was broken off before its answer began, as in the logs of nginx.
const BROKEN_OFF: u16 = 499;

/// The access log of one server.
#[derive(Debug)]
pub struct AccessLog {
    lines: Option<Arc<WaitingLines>>,
    writer: Option<JoinHandle<()>>,
}

/// Lines on their way to the disk.
#[derive(Debug, Default)]
struct WaitingLines {
    state: Mutex<LineState>,
    changed: Condvar,
    lost: AtomicU64,
}

#[derive(Debug, Default)]
struct LineState {
    text: Vec<u8>,
    /// The second of the newest line, and how it is written.
    second: (u64, String),
    reopen: bool,
    is_closed: bool,
}

impl AccessLog {
    /// Opens the target and starts its writer.
    ///
    /// # Errors
    /// When the file can't be opened or the thread can't be started.
    pub fn open(target: &LogTarget) -> io::Result<Arc<Self>> {
        let Some(sink) = LogSink::open(target)? else {
            return Ok(Self::nowhere());
        };
        let lines = Arc::new(WaitingLines::default());
        let waiting = lines.clone();
        let writer = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || waiting.write_to(sink))?;
        Ok(Arc::new(Self {
            lines: Some(lines),
            writer: Some(writer),
        }))
    }

    /// A log that is not kept.
    pub fn nowhere() -> Arc<Self> {
        Arc::new(Self {
            lines: None,
            writer: None,
        })
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.lines.is_some()
    }

    /// Lines that were not written since the start: the disk is full, broken or too slow.
    pub(crate) fn lost(&self) -> u64 {
        let lines = self.lines.as_ref();
        lines.map_or(0, |lines| lines.lost.load(Ordering::Relaxed))
    }

    /// Opens the file again, after `logrotate` has moved the old one.
    pub fn reopen(&self) {
        if let Some(lines) = &self.lines {
            lines.lock().reopen = true;
            lines.changed.notify_one();
        }
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        if let Some(lines) = &self.lines {
            lines.lock().is_closed = true;
            lines.changed.notify_one();
        }
        // The last lines reach the disk before the process goes.
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl WaitingLines {
    fn lock(&self) -> MutexGuard<'_, LineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, entry: &AccessEntry, now: UnixTime) {
        let mut state = self.lock();
        let state = &mut *state;
        let was_empty = state.text.is_empty();
        if state.text.len() >= ACCESS_BYTES_MAX {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if state.second.0 != now.as_secs() || state.second.1.is_empty() {
            state.second = (now.as_secs(), timestamp(now));
        }
        // Writing into a vector does not fail.
        let _ = entry.write(&state.second.1, &mut state.text);
        if was_empty {
            self.changed.notify_one();
        }
    }

    fn write_to(&self, mut sink: LogSink) {
        loop {
            let idle =
                |state: &mut LineState| state.text.is_empty() && !state.reopen && !state.is_closed;
            let waiting = self.changed.wait_while(self.lock(), idle);
            let closed = waiting.unwrap_or_else(PoisonError::into_inner).is_closed;
            if !closed {
                // The lines of some moments go to the disk together.
                std::thread::sleep(ACCESS_GATHER_TIME);
            }
            let (text, reopen, closed) = {
                let mut state = self.lock();
                let reopen = std::mem::take(&mut state.reopen);
                (std::mem::take(&mut state.text), reopen, state.is_closed)
            };
            if let Err(error) = sink.write(&text) {
                let lines = text.iter().filter(|byte| **byte == b'\n').count();
                self.lost.fetch_add(lines as u64, Ordering::Relaxed);
                tracing::error!("access lines can't be written: {error}: make room");
            }
            if reopen {
                sink.reopen();
            }
            if closed {
                return;
            }
        }
    }
}

/// Who asks on a connection, as all its lines say it in JSON.
#[derive(Debug)]
pub(crate) struct AccessClient(Vec<u8>);

impl AccessClient {
    /// A client at this address; `subject` is what it has proved, if anything, and `claimed` what stands in a chain that proves nothing.
    pub(crate) fn new(address: SocketAddr, subject: Option<&str>, claimed: Option<&str>) -> Self {
        let mut fields = format!("\"address\":\"{address}\"").into_bytes();
        for (name, subject) in [("subject", subject), ("claimed_subject", claimed)] {
            if let Some(subject) = subject {
                fields.extend(format!(",\"{name}\":").bytes());
                add_string(&mut fields, subject);
            }
        }
        Self(fields)
    }
}

/// A request of which a line will tell, once its answer is over or broken off: when this is dropped.
pub(crate) struct AccessEntry {
    state: Arc<ServerState>,
    client: Arc<AccessClient>,
    method: Option<Method>,
    path: String,
    since: Instant,
    pub(crate) status: Option<u16>,
    pub(crate) bytes: u64,
}

impl AccessEntry {
    /// A request that has just come; `target` is its method and path, where they could be read. Nothing where no log is kept.
    pub(crate) fn begin(
        state: &Arc<ServerState>,
        client: &Arc<AccessClient>,
        target: Option<(&Method, &str)>,
    ) -> Option<Box<Self>> {
        if !state.access_log.is_kept() {
            return None;
        }
        // It moves with the answer through many hands.
        Some(Box::new(Self {
            state: state.clone(),
            client: client.clone(),
            method: target.map(|(method, _)| method.clone()),
            path: target.map_or_else(String::new, |(_, path)| path.to_owned()),
            since: Instant::now(),
            status: None,
            bytes: 0,
        }))
    }
}

impl AccessEntry {
    /// The fields by hand: this is written for each request.
    fn write(&self, time: &str, text: &mut Vec<u8>) -> io::Result<()> {
        write!(text, "{{\"time\":\"{time}\",")?;
        text.extend(&self.client.0);
        text.extend(b",\"method\":\"");
        // Methods are tokens of HTTP, which have no quotation marks.
        text.extend(self.method.as_ref().map_or("", Method::as_str).bytes());
        text.extend(b"\",\"path\":");
        add_string(text, &self.path);
        let (status, bytes) = (self.status.unwrap_or(BROKEN_OFF), self.bytes);
        let micros = self.since.elapsed().as_micros();
        let (millis, rest) = (micros / 1000, micros % 1000);
        writeln!(
            text,
            ",\"status\":{status},\"bytes\":{bytes},\"milliseconds\":{millis}.{rest:03}}}"
        )
    }
}

impl fmt::Debug for AccessEntry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("AccessEntry")
            .field("method", &self.method)
            .field("path", &self.path)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Drop for AccessEntry {
    fn drop(&mut self) {
        if let Some(lines) = &self.state.access_log.lines {
            lines.add(self, self.state.now());
        }
    }
}
