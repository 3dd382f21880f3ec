//! SimGrid's time-independent traces: a text with one action a line, `<rank> <action> <arguments>`, as SMPI writes and replays them.
//!
//! Communicators are all ranks there, and an amount of computation is in floating-point operations. A number below 0 stands for anybody, who is never
//! told, and for nobody. An exchange in both directions has no tags: they are 0, as in the replay.

use std::collections::BTreeMap;

use crate::{
    GAP_NS_MAX, Operation, RANKS_MAX, RECORDS_MAX, Trace, TraceError, TraceFault, TraceRecord,
};

/// One file of such a trace: of one rank, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayText<'a> {
    /// What it is called, for messages.
    pub name: &'a str,
    /// What it says.
    pub text: &'a str,
}

/// How many characters of a bad word an error quotes.
const QUOTED_MAX: usize = 40;

impl Trace {
    /// A trace from the texts of all ranks. `operations_per_second` turns an amount of computation into time. Ranks whose text ends before they do, receives
    /// from anybody, and sends that nobody receives are in its note.
    ///
    /// # Errors
    ///
    /// [`TraceError`] that names the text and the line, for whatever is no action with its arguments, and for ranks that are not there.
    pub fn read_simgrid(
        name: &str,
        texts: &[ReplayText<'_>],
        operations_per_second: f64,
    ) -> Result<Self, TraceError> {
        let rate = operations_per_second;
        if !(rate.is_finite() && rate > 0.0) {
            return Err(TraceFault::Text {
                got: rate.to_string(),
                expected: "a positive number of operations per second",
            }
            .at("the speed of computation"));
        }
        let count = count_ranks(texts)?;
        let everybody: Vec<u16> = (0..count).map(|rank| rank as u16).collect();
        let mut reader = Reader {
            communicators: vec![vec![everybody]; count],
            ranks: vec![Rank::default(); count],
            operations_per_nanosecond: rate / 1e9,
            from_anybody: 0,
        };
        let mut records: usize = 0;
        for line in texts.iter().flat_map(lines) {
            records += reader.take(&line)?;
            if records > RECORDS_MAX {
                return Err(line.fault(TraceFault::TooMany {
                    what: "records",
                    got: records as u64,
                    most: RECORDS_MAX as u64,
                }));
            }
        }
        Ok(Self {
            name: name.to_owned(),
            iterations: 0,
            note: reader.note(),
            ranks: reader.ranks.into_iter().map(|rank| rank.records).collect(),
            communicators: reader.communicators,
        })
    }
}

/// A line that says something.
struct TraceLine<'a> {
    text: &'a ReplayText<'a>,
    number: usize,
    words: Vec<&'a str>,
}

fn lines<'a>(text: &'a ReplayText<'a>) -> impl Iterator<Item = TraceLine<'a>> {
    text.text
        .lines()
        .enumerate()
        .map(move |(index, line)| TraceLine {
            text,
            number: index + 1,
            words: line.split_whitespace().collect(),
        })
        .filter(|line| {
            line.words
                .first()
                .is_some_and(|word| !word.starts_with('#'))
        })
}

/// The ranks of all lines must be 0, 1, 2, .. without a gap.
fn count_ranks(texts: &[ReplayText<'_>]) -> Result<usize, TraceError> {
    let mut seen = Vec::new();
    for line in texts.iter().flat_map(lines) {
        let rank = line.rank()?;
        if rank >= seen.len() {
            seen.resize(rank + 1, false);
        }
        seen[rank] = true;
    }
    match seen.iter().position(|seen| !seen) {
        None => Ok(seen.len()),
        Some(rank) => Err(TraceFault::Ranks {
            got: rank,
            expected: seen.len(),
        }
        .in_rank("the texts", rank)),
    }
}

impl TraceLine<'_> {
    fn fault(&self, fault: TraceFault) -> TraceError {
        let mut error = fault.at(self.text.name);
        error.place.line = Some(self.number);
        error
    }

    fn unexpected(&self, got: &str, expected: &'static str) -> TraceError {
        let got = got.chars().take(QUOTED_MAX).collect();
        self.fault(TraceFault::Text { got, expected })
    }

    fn rank(&self) -> Result<usize, TraceError> {
        let word = self.words.first().copied().unwrap_or_default();
        // Older traces say p7 instead of 7.
        let rank = word.strip_prefix('p').unwrap_or(word).parse();
        rank.ok()
            .filter(|rank| *rank < RANKS_MAX)
            .ok_or_else(|| self.unexpected(word, "the number of a rank below 32768"))
    }

    /// An argument of the action, from 0 on.
    fn argument(&self, index: usize) -> Option<&str> {
        self.words.get(index + 2).copied()
    }

    fn needed(&self, index: usize, expected: &'static str) -> Result<&str, TraceError> {
        self.argument(index)
            .ok_or_else(|| self.unexpected("the end of the line", expected))
    }

    /// An amount: these files have `1e6` and `12.5` in them.
    fn amount(&self, index: usize) -> Result<f64, TraceError> {
        const EXPECTED: &str = "an amount (a number that isn't negative)";
        let word = self.needed(index, EXPECTED)?;
        word.parse()
            .ok()
            .filter(|amount: &f64| amount.is_finite() && *amount >= 0.0)
            .ok_or_else(|| self.unexpected(word, EXPECTED))
    }

    fn peer(&self, index: usize) -> Result<u16, TraceError> {
        const EXPECTED: &str = "the number of a rank";
        let word = self.needed(index, EXPECTED)?;
        word.parse().map_err(|_| self.unexpected(word, EXPECTED))
    }

    /// The other end of a message, if there is one and it is known.
    fn other_end(&self, index: usize) -> Result<Option<u16>, TraceError> {
        const EXPECTED: &str = "the number of a rank, or one below 0 for anybody or nobody";
        let word = self.needed(index, EXPECTED)?;
        let number: i32 = word.parse().map_err(|_| self.unexpected(word, EXPECTED))?;
        if number < 0 {
            return Ok(None);
        }
        u16::try_from(number)
            .map(Some)
            .map_err(|_| self.unexpected(word, EXPECTED))
    }

    fn root(&self, index: usize) -> Result<Option<u16>, TraceError> {
        match self.argument(index) {
            None => Ok(Some(0)),
            Some(_) => self.peer(index).map(Some),
        }
    }

    fn tag(&self, index: usize) -> Result<i32, TraceError> {
        const EXPECTED: &str = "a tag";
        let word = self.needed(index, EXPECTED)?;
        word.parse().map_err(|_| self.unexpected(word, EXPECTED))
    }

    /// Bytes of an element of the type that is named there, else of the default one.
    fn width(&self, index: usize, otherwise: f64) -> Result<f64, TraceError> {
        let Some(word) = self.argument(index) else {
            return Ok(otherwise);
        };
        // SMPI numbers MPI's types: double, int, char, short, long, float, byte, long long, then the signed and unsigned ones.
        Ok(match word {
            "2" | "6" | "8" | "9" | "16" | "17" | "21" => 1.0,
            "3" | "10" | "18" | "22" => 2.0,
            "1" | "5" | "11" | "15" | "19" | "23" => 4.0,
            "0" | "4" | "7" | "12" | "13" | "20" | "24" => 8.0,
            "14" => 16.0,
            _ => {
                return Err(self.unexpected(word, "the number of a type of fixed size (0 to 24)"));
            }
        })
    }

    fn bytes(&self, elements: f64, width: f64) -> Result<u32, TraceError> {
        let bytes = (elements * width).round();
        if bytes > f64::from(u32::MAX) {
            return Err(self.fault(TraceFault::TooMany {
                what: "bytes",
                got: bytes as u64,
                most: u64::from(u32::MAX),
            }));
        }
        Ok(bytes as u32)
    }

    /// The mean of so many amounts.
    fn mean(&self, first: usize, count: usize) -> Result<f64, TraceError> {
        let mut sum = 0.0;
        for index in first..first + count {
            sum += self.amount(index)?;
        }
        Ok(sum / count as f64)
    }
}

/// What is known of a rank so far.
#[derive(Clone, Default)]
struct Rank {
    records: Vec<TraceRecord>,
    /// Since the last call.
    gap_ns: f64,
    /// Of an element whose type no action names.
    default_width: f64,
    requests: u32,
    /// Sender, receiver, tag and number of the requests that nobody has waited for, the oldest first.
    open: Vec<(Option<u16>, Option<u16>, i32, u32)>,
}

struct Reader {
    communicators: Vec<Vec<Vec<u16>>>,
    ranks: Vec<Rank>,
    operations_per_nanosecond: f64,
    /// Receives whose sender the texts don't tell.
    from_anybody: u64,
}

impl Reader {
    /// How many records the line became.
    fn take(&mut self, line: &TraceLine<'_>) -> Result<usize, TraceError> {
        let rank = line.rank()?;
        let size = self.ranks.len();
        let state = &mut self.ranks[rank];
        let action = line.words.get(1).copied().unwrap_or_default();
        let records = match action.to_ascii_lowercase().as_str() {
            "compute" => {
                state.gap_ns += line.amount(0)? / self.operations_per_nanosecond;
                return Ok(0);
            }
            "sleep" => {
                state.gap_ns += line.amount(0)? * 1e9;
                return Ok(0);
            }
            // A test only looks; the others say what the ranks know from the start.
            "test" | "location" | "comm_size" | "comm_split" | "comm_dup" => return Ok(0),
            "init" => {
                // With an argument, the trace is of the older of two tools, which counted doubles.
                state.default_width = if line.argument(0).is_some() { 8.0 } else { 1.0 };
                vec![TraceRecord::new(Operation::Init)]
            }
            name => state.call(rank as u16, size, name, line)?,
        };
        let count = records.len();
        for mut record in records {
            let gap_ns = state.gap_ns.round();
            state.gap_ns = 0.0;
            // What is too long saturates, and is refused as too long.
            record.gap_ns = (gap_ns as u64).min(GAP_NS_MAX + 1);
            if let Some((_, fault)) = record.fault(rank, &self.communicators) {
                return Err(line.fault(fault));
            }
            self.from_anybody += u64::from(record.operation.is_receive() && record.peer.is_none());
            state.records.push(record);
        }
        Ok(count)
    }

    fn note(&self) -> String {
        let mut note = vec!["from a time-independent trace of SimGrid".to_owned()];
        let ended_early = self.ranks.iter().enumerate().filter(|(_, rank)| {
            let records = &rank.records;
            let begins = records.iter().any(|call| call.operation == Operation::Init);
            begins && records.last().map(|last| last.operation) != Some(Operation::Finalize)
        });
        let ended_early: Vec<String> = ended_early.map(|(rank, _)| rank.to_string()).collect();
        if !ended_early.is_empty() {
            note.push(format!("ended early: rank {}", ended_early.join(", ")));
        }
        if self.from_anybody > 0 {
            note.push(format!(
                "{} receives are from anybody or nobody, which isn't told apart and is left out",
                self.from_anybody
            ));
        }
        let sent = self.sent_to_nobody();
        if sent > 0 {
            note.push(format!(
                "sends without a receive: {sent}, tags apart; their messages stay on the way"
            ));
        }
        note.join("; ")
    }

    /// Sends that no receive of their receiver is left for, those from anybody included. Tags are not looked at.
    fn sent_to_nobody(&self) -> u64 {
        let mut without: BTreeMap<(u16, usize), u64> = BTreeMap::new();
        for (rank, state) in self.ranks.iter().enumerate() {
            for send in state.records.iter().filter(|call| call.operation.is_send()) {
                if let Some(peer) = send.peer {
                    *without.entry((rank as u16, usize::from(peer))).or_default() += 1;
                }
            }
        }
        let mut from_anybody = vec![0_u64; self.ranks.len()];
        for (rank, state) in self.ranks.iter().enumerate() {
            let receives = state
                .records
                .iter()
                .filter(|call| call.operation.is_receive());
            for receive in receives {
                match receive.peer {
                    None => from_anybody[rank] += 1,
                    Some(peer) => {
                        if let Some(left) = without.get_mut(&(peer, rank)) {
                            *left = left.saturating_sub(1);
                        }
                    }
                }
            }
        }
        let mut sends = 0;
        for ((_, receiver), left) in without {
            let taken = left.min(from_anybody[receiver]);
            from_anybody[receiver] -= taken;
            sends += left - taken;
        }
        sends
    }
}

impl Rank {
    fn call(
        &mut self,
        me: u16,
        size: usize,
        name: &str,
        line: &TraceLine<'_>,
    ) -> Result<Vec<TraceRecord>, TraceError> {
        let record = match name {
            "send" | "ssend" | "bsend" | "rsend" => self.message(Operation::Send, line)?,
            "recv" => self.message(Operation::Receive, line)?,
            "isend" | "issend" | "ibsend" | "irsend" => {
                let mut record = self.message(Operation::SendStart, line)?;
                if let Some(peer) = record.peer {
                    self.open(&mut record, Some(me), Some(peer));
                }
                record
            }
            "irecv" => {
                let mut record = self.message(Operation::ReceiveStart, line)?;
                let from = record.peer;
                self.open(&mut record, from, Some(me));
                record
            }
            "sendrecv" => return self.exchange(line),
            "wait" => {
                let (from, to, tag) = (line.other_end(0)?, line.other_end(1)?, line.tag(2)?);
                let known = self
                    .open
                    .iter()
                    .position(|open| (open.0, open.1, open.2) == (from, to, tag));
                // A test has found this one done before.
                let Some(index) = known else {
                    return Ok(Vec::new());
                };
                TraceRecord {
                    request: self.open.remove(index).3,
                    ..TraceRecord::new(Operation::Wait)
                }
            }
            "waitall" => {
                let record = TraceRecord {
                    request: self
                        .open
                        .iter()
                        .map(|open| open.3)
                        .min()
                        .unwrap_or_default(),
                    tag: self.open.len() as i32,
                    ..TraceRecord::new(Operation::WaitAll)
                };
                self.open.clear();
                record
            }
            _ => self.collective(size, name, line)?,
        };
        // A send to nobody is none.
        let sent_to_nobody = record.operation.is_send() && record.peer.is_none();
        Ok(Vec::from_iter((!sent_to_nobody).then_some(record)))
    }

    /// In both directions at once: a receive that begins, a send, and the wait for the former.
    fn exchange(&mut self, line: &TraceLine<'_>) -> Result<Vec<TraceRecord>, TraceError> {
        let default = self.default_width;
        let send = TraceRecord {
            peer: line.other_end(1)?,
            bytes: line.bytes(line.amount(0)?, line.width(4, default)?)?,
            ..TraceRecord::new(Operation::Send)
        };
        let request = self.next_request();
        let receive = TraceRecord {
            peer: line.other_end(3)?,
            bytes: line.bytes(line.amount(2)?, line.width(5, default)?)?,
            request,
            ..TraceRecord::new(Operation::ReceiveStart)
        };
        let wait = TraceRecord {
            request,
            ..TraceRecord::new(Operation::Wait)
        };
        let mut records = vec![receive];
        records.extend(send.peer.is_some().then_some(send));
        records.push(wait);
        Ok(records)
    }

    fn next_request(&mut self) -> u32 {
        let request = self.requests;
        self.requests = self.requests.wrapping_add(1);
        request
    }

    fn message(
        &self,
        operation: Operation,
        line: &TraceLine<'_>,
    ) -> Result<TraceRecord, TraceError> {
        let width = line.width(3, self.default_width)?;
        Ok(TraceRecord {
            peer: line.other_end(0)?,
            tag: line.tag(1)?,
            bytes: line.bytes(line.amount(2)?, width)?,
            ..TraceRecord::new(operation)
        })
    }

    fn open(&mut self, record: &mut TraceRecord, from: Option<u16>, to: Option<u16>) {
        record.request = self.next_request();
        self.open.push((from, to, record.tag, record.request));
    }

    fn collective(
        &self,
        size: usize,
        name: &str,
        line: &TraceLine<'_>,
    ) -> Result<TraceRecord, TraceError> {
        let default = self.default_width;
        // Operation, root, elements, bytes of each.
        let (operation, peer, elements, width) = match name {
            "barrier" => (Operation::Barrier, None, 0.0, 0.0),
            "finalize" => (Operation::Finalize, None, 0.0, 0.0),
            "bcast" => {
                let root = line.root(1)?;
                let width = line.width(2, default)?;
                (Operation::Broadcast, root, line.amount(0)?, width)
            }
            "reduce" => {
                let root = line.root(2)?;
                let width = line.width(3, default)?;
                (Operation::Reduce, root, line.amount(0)?, width)
            }
            "allreduce" => {
                let width = line.width(2, default)?;
                (Operation::AllReduce, None, line.amount(0)?, width)
            }
            "alltoall" => {
                let width = line.width(2, default)?;
                (Operation::AllToAll, None, line.amount(0)?, width)
            }
            "alltoallv" => {
                let width = line.width(2 + 2 * size, default)?;
                (Operation::AllToAllVarying, None, line.mean(1, size)?, width)
            }
            "gather" => {
                let root = line.root(2)?;
                let width = line.width(3, default)?;
                (Operation::Gather, root, line.amount(0)?, width)
            }
            "gatherv" => {
                let root = line.root(1 + size)?;
                let width = line.width(2 + size, default)?;
                (Operation::Gather, root, line.amount(0)?, width)
            }
            "scatter" => {
                let root = line.root(2)?;
                let width = line.width(3, default)?;
                (Operation::Scatter, root, line.amount(0)?, width)
            }
            "scatterv" => {
                let root = line.root(1 + size)?;
                let width = line.width(2 + size, default)?;
                (Operation::Scatter, root, line.mean(0, size)?, width)
            }
            "allgather" => {
                let width = line.width(2, default)?;
                (Operation::AllGather, None, line.amount(0)?, width)
            }
            "allgatherv" => {
                let width = line.width(1 + size, default)?;
                (Operation::AllGather, None, line.amount(0)?, width)
            }
            "reducescatter" => {
                let width = line.width(1 + size, default)?;
                (Operation::ReduceScatter, None, line.mean(0, size)?, width)
            }
            "scan" | "exscan" => {
                let width = line.width(2, default)?;
                (Operation::Scan, None, line.amount(0)?, width)
            }
            _ => {
                return Err(
                    line.unexpected(name, "an action of SMPI's replay, such as compute or isend")
                );
            }
        };
        Ok(TraceRecord {
            peer,
            bytes: line.bytes(elements, width)?,
            ..TraceRecord::new(operation)
        })
    }
}
