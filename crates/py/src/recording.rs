//! The file for what is recorded of a manager's messages, written when it ends.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use exoskel_net::manager::{MessageObserver, ObservedMessage};
use exoskel_trace::{MessageDirection, Recording};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

/// What goes to a file when the manager ends. Until then it is another file, so that nobody finds a part of a trace.
pub(crate) struct RecordingFile {
    path: PathBuf,
    part: PathBuf,
    file: File,
    recording: Arc<Mutex<Recording>>,
}

impl RecordingFile {
    /// Begins one; the file that it will be written to first is made now, so that a bad path is found before the run and not after it.
    pub(crate) fn begin(path: PathBuf) -> PyResult<Self> {
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = File::create(&part).map_err(|error| {
            PyOSError::new_err(format!("{}: can't be written: {error}", part.display()))
        })?;
        Ok(Self {
            path,
            part,
            file,
            recording: Arc::default(),
        })
    }

    /// Who is told of each message.
    pub(crate) fn observer(&self) -> MessageObserver {
        let recording = self.recording.clone();
        Box::new(move |message: ObservedMessage| {
            let direction = if message.is_sent {
                MessageDirection::Send
            } else {
                MessageDirection::Receive
            };
            let mut recording = recording.lock().unwrap_or_else(PoisonError::into_inner);
            recording.note(message.slot, direction, message.bytes, message.at);
        })
    }

    /// Writes the trace.
    pub(crate) fn end(mut self) -> PyResult<()> {
        let recording = std::mem::take(
            &mut *self
                .recording
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        let bytes = recording
            .trace(name.split('.').next().unwrap_or_default())
            .write()
            .map_err(|error| PyValueError::new_err(format!("{}: {error}", self.path.display())))?;
        self.file
            .write_all(&bytes)
            .and_then(|()| self.file.sync_all())
            .and_then(|()| fs::rename(&self.part, &self.path))
            .map_err(|error| {
                PyOSError::new_err(format!(
                    "{}: can't be written: {error}",
                    self.path.display()
                ))
            })
    }
}
