//! One line of JSON for each decision.
//!
//! Lines are written by a thread of their own, many at once when there are many. No line is dropped: when the disk
//! can't follow, new decisions wait for it, and with them the connections that ask for one. A decision that can't wait is
//! made by who has reserved the [`ReservedLine`] of its line before.

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use exoskel_identity::{Date, VerifiedIdentity, hex};
use rustls_pki_types::UnixTime;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::admission::{Refused, Who};
use crate::limits::AUDIT_LINES_MAX;
use crate::log_file::{LogSink, LogTarget, add_line};

/// Whether somebody may do something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// They may.
    Accepted,
    /// They may not.
    Refused,
}

/// One decision, as it is written.
#[derive(Debug, Serialize)]
pub(crate) struct AuditLine<'a> {
    time: String,
    address: SocketAddr,
    /// The proven subject.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<Cow<'a, str>>,
    /// What a client with a faulty chain calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    claimed_subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vo: Option<&'a str>,
    fqans: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attribute_faults: Vec<String>,
    /// Serial numbers of the chain in hexadecimal digits, the leaf's first.
    serials: Cow<'a, [String]>,
    action: &'a str,
    verdict: Verdict,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'a str,
}

impl<'a> AuditLine<'a> {
    /// About somebody whose identity is proven.
    pub(crate) fn identified(
        identity: &'a VerifiedIdentity,
        address: SocketAddr,
        now: UnixTime,
        action: &'a str,
        verdict: Verdict,
        reason: &'a str,
    ) -> Self {
        Self {
            time: timestamp(now),
            address,
            subject: Some(subject(identity)),
            claimed_subject: None,
            vo: identity.vo(),
            fqans: identity.fqans().map(ToString::to_string).collect(),
            attribute_faults: identity
                .attribute_faults()
                .iter()
                .map(ToString::to_string)
                .collect(),
            serials: identity.serials().iter().map(|one| hex(one)).collect(),
            action,
            verdict,
            reason,
        }
    }

    /// About somebody who may not come in.
    pub(crate) fn refused(
        refused: &'a Refused,
        address: SocketAddr,
        now: UnixTime,
        action: &'a str,
    ) -> Self {
        match &refused.who {
            Who::Proven(identity) => Self::identified(
                identity,
                address,
                now,
                action,
                Verdict::Refused,
                &refused.reason,
            ),
            Who::Claimed {
                subject, serials, ..
            } => Self {
                time: timestamp(now),
                address,
                subject: None,
                claimed_subject: subject.as_deref(),
                vo: None,
                fqans: Vec::new(),
                attribute_faults: Vec::new(),
                serials: Cow::Borrowed(serials),
                action,
                verdict: Verdict::Refused,
                reason: &refused.reason,
            },
        }
    }
}

/// A time as RFC 3339 writes it.
pub(crate) fn timestamp(time: UnixTime) -> String {
    // "2026-11-20 13:47:28 UTC", which people prefer to read
    Date(time)
        .to_string()
        .replacen(' ', "T", 1)
        .replace(" UTC", "Z")
}

/// By what somebody is known: the slash form in a grid, which rules and grid-mapfiles are written in.
pub(crate) fn subject(identity: &VerifiedIdentity) -> Cow<'_, str> {
    identity
        .grid_subject()
        .map_or_else(|| identity.subject().slash().into(), Cow::Borrowed)
}

#[derive(Debug)]
enum AuditOrder {
    Line(String),
    Reopen,
}

/// The audit trail of one server.
#[derive(Debug)]
pub struct Audit {
    orders: Option<mpsc::Sender<AuditOrder>>,
    writer: Option<JoinHandle<()>>,
    lost: Arc<AtomicU64>,
}

impl Audit {
    /// Opens the target and starts its writer.
    ///
    /// # Errors
    /// When the file can't be opened or the thread can't be started.
    pub fn open(target: &LogTarget) -> io::Result<Arc<Self>> {
        let Some(sink) = LogSink::open(target)? else {
            return Ok(Self::nowhere());
        };
        let (orders, received) = mpsc::channel(AUDIT_LINES_MAX);
        let lost = Arc::new(AtomicU64::new(0));
        let counter = lost.clone();
        let writer = std::thread::Builder::new()
            .name("audit".to_owned())
            .spawn(move || write_lines(received, sink, &counter))?;
        Ok(Arc::new(Self {
            orders: Some(orders),
            writer: Some(writer),
            lost,
        }))
    }

    /// A trail that is not kept.
    pub fn nowhere() -> Arc<Self> {
        Arc::new(Self {
            orders: None,
            writer: None,
            lost: Arc::default(),
        })
    }

    /// Writes a decision down, and waits only when the disk can't follow.
    pub(crate) async fn record(&self, line: &AuditLine<'_>) {
        self.reserve().await.write(line);
    }

    /// The same on a thread that may wait.
    pub(crate) fn record_waiting(&self, line: &AuditLine<'_>) {
        if let (Some(orders), Some(text)) = (&self.orders, written(line)) {
            // The writer ends with the last sender only.
            let _ = orders.blocking_send(AuditOrder::Line(text));
        }
    }

    /// Reserves the line of a decision that is about to be made. Waits only when the disk can't follow.
    pub(crate) async fn reserve(&self) -> ReservedLine {
        let Some(orders) = &self.orders else {
            return ReservedLine(None);
        };
        // The writer ends with the last sender only, so there is no error.
        ReservedLine(orders.clone().reserve_owned().await.ok())
    }

    /// Lines that could not be written since the start: the disk is full or broken.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Opens the file again, after `logrotate` has moved the old one.
    pub async fn reopen(&self) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(AuditOrder::Reopen).await;
        }
    }
}

/// Where a line will stand, whatever becomes of the disk and of whom it is about. Dropping it gives it to others.
#[derive(Debug)]
#[must_use]
pub(crate) struct ReservedLine(Option<mpsc::OwnedPermit<AuditOrder>>);

impl ReservedLine {
    /// Writes the decision down; nothing waits.
    pub(crate) fn write(self, line: &AuditLine<'_>) {
        let Some(place) = self.0 else { return };
        if let Some(text) = written(line) {
            drop(place.send(AuditOrder::Line(text)));
        }
    }
}

fn written(line: &AuditLine<'_>) -> Option<String> {
    let mut text = Vec::new();
    match add_line(&mut text, line) {
        // JSON is UTF-8.
        Ok(()) => String::from_utf8(text).ok(),
        Err(error) => {
            tracing::error!("an audit line can't be written as JSON: {error}");
            None
        }
    }
}

impl Drop for Audit {
    fn drop(&mut self) {
        // The last lines reach the disk before the process goes.
        self.orders = None;
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

fn write_lines(mut orders: mpsc::Receiver<AuditOrder>, mut sink: LogSink, lost: &AtomicU64) {
    let mut text = String::new();
    while let Some(order) = orders.blocking_recv() {
        let mut next = Some(order);
        while let Some(order) = next {
            match order {
                AuditOrder::Line(line) => text.push_str(&line),
                AuditOrder::Reopen => {
                    flush(&mut sink, &mut text, lost);
                    sink.reopen();
                }
            }
            next = orders.try_recv().ok();
        }
        flush(&mut sink, &mut text, lost);
    }
}

fn flush(sink: &mut LogSink, text: &mut String, lost: &AtomicU64) {
    if let Err(error) = sink.write(text.as_bytes()) {
        lost.fetch_add(text.lines().count() as u64, Ordering::Relaxed);
        tracing::error!("audit lines can't be written: {error}: make room, or the trail has a gap");
    }
    text.clear();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_decision_waits_until_there_is_a_place_for_its_line() {
        let target = LogTarget::File("/dev/null".into());
        let audit = Audit::open(&target).unwrap();
        let mut places = Vec::new();
        for _ in 0..AUDIT_LINES_MAX {
            places.push(audit.reserve().await);
        }
        tokio::select! {
            biased;
            _ = audit.reserve() => panic!("there is no place left"),
            () = std::future::ready(()) => {}
        }
        drop(places.pop());
        drop(audit.reserve().await);
    }
}
