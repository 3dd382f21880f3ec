//! Simulations for Python: session-key caches under traces, the whole system, and many runs on all processors.

mod jobs;
mod links;
mod live;
mod system;

use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use exoskel_keycache::model::OnOffParameters;
use exoskel_keycache::periods::{PeriodRules, Periods};
use exoskel_keycache::sequence::{Hits, Lookup, ReplacementPolicy, Traffic, replay_on_cards};
use exoskel_keycache::{Parameters, RanksPerCard, ReplayProgram, RunOutcome, Study, requests};
use exoskel_link::keys::{Geometry, Placement};
use exoskel_trace::{FILE_BYTES_MAX, Trace};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// How long a wait lasts before signals are looked at.
const PATIENCE: Duration = Duration::from_millis(100);

/// Results that wait to be taken by Python, at most; a thread with one more waits.
const RESULTS_WAITING_MAX: usize = 64;

/// Events that a run on cards handles before its thread looks whether it should stop.
const EVENTS_BETWEEN_LOOKS: u64 = 100_000;

/// Entries of a cache without time, at most: it has its memory from the start, some 40 bytes each, on each processor.
const ENTRIES_MAX: usize = 1 << 22;

/// Payload of a packet where packets are looked up: the paper's.
const PACKET_BYTES: u32 = 256;

pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<KeyCacheTrace>()?;
    module.add_function(wrap_pyfunction!(key_cache_capacity, module)?)?;
    module.add_function(wrap_pyfunction!(key_cache_parameters, module)?)?;
    module.add_function(wrap_pyfunction!(live::key_cache_live, module)?)?;
    module.add_function(wrap_pyfunction!(key_cache_runs, module)?)?;
    module.add_function(wrap_pyfunction!(jobs::jobs_runs, module)?)?;
    module.add_function(wrap_pyfunction!(jobs::jobs_scenario, module)?)?;
    module.add_function(wrap_pyfunction!(links::links_fault_names, module)?)?;
    module.add_function(wrap_pyfunction!(links::links_runs, module)?)?;
    module.add_function(wrap_pyfunction!(links::links_scenario, module)?)?;
    module.add_function(wrap_pyfunction!(system::system_scenario, module)?)?;
    module.add_function(wrap_pyfunction!(system::system_runs, module)?)
}

/// Why a job gave no result.
enum JobFailure {
    /// Somebody asked the threads to stop.
    Stopped,
    /// It can't be run.
    Refused(String),
}

impl<Reason: std::error::Error> From<Reason> for JobFailure {
    fn from(reason: Reason) -> Self {
        Self::Refused(reason.to_string())
    }
}

/// Runs jobs on several threads, as long as `next` gives any, and hands each result to `finished`, in the calling thread, as it comes.
/// Ends early with the first error, be it a job's, that of `finished`, or a signal's.
fn in_parallel<StudyJob, RunOutcome: Send>(
    py: Python<'_>,
    threads: usize,
    next: impl Fn() -> Option<StudyJob> + Sync,
    run: impl Fn(StudyJob, &AtomicBool) -> Result<RunOutcome, JobFailure> + Sync,
    finished: impl Fn(Python<'_>, RunOutcome) -> PyResult<()> + Sync,
) -> PyResult<()> {
    let stop = AtomicBool::new(false);
    py.detach(|| {
        std::thread::scope(|scope| {
            let (sender, results) = mpsc::sync_channel(RESULTS_WAITING_MAX);
            for _ in 0..threads {
                let (sender, stop, next, run) = (sender.clone(), &stop, &next, &run);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed)
                        && let Some(job) = next()
                    {
                        // Nobody listens any more: the others have failed.
                        if sender.send(run(job, stop)).is_err() {
                            break;
                        }
                    }
                });
            }
            drop(sender);
            let ended = loop {
                let taken = results.recv_timeout(PATIENCE);
                let step = Python::attach(|py| {
                    py.check_signals()?;
                    match taken {
                        Ok(Ok(outcome)) => finished(py, outcome).map(|()| true),
                        Ok(Err(JobFailure::Refused(text))) => Err(PyValueError::new_err(text)),
                        Ok(Err(JobFailure::Stopped)) | Err(RecvTimeoutError::Timeout) => Ok(true),
                        Err(RecvTimeoutError::Disconnected) => Ok(false),
                    }
                });
                match step {
                    Ok(true) => {}
                    Ok(false) => break Ok(()),
                    Err(error) => break Err(error),
                }
            };
            stop.store(true, Ordering::Relaxed);
            // Threads that wait to hand over a result have to see that nobody takes it.
            drop(results);
            ended
        })
    })
}

/// Plays seeds from `first` on, on several threads: `count` of them, those that begin within so many seconds, or whichever is over first.
/// `finished` gets what came of each, as they come.
fn seeds_in_parallel<Played: Send>(
    py: Python<'_>,
    first: u64,
    count: Option<u64>,
    seconds: Option<f64>,
    threads: NonZeroUsize,
    play: impl Fn(u64) -> Played + Sync,
    finished: impl Fn(Python<'_>, Played) -> PyResult<()> + Sync,
) -> PyResult<()> {
    let lasting = seconds.map(Duration::try_from_secs_f64).transpose();
    let lasting = lasting.map_err(|error| PyValueError::new_err(error.to_string()))?;
    let (begun, count) = (Instant::now(), count.unwrap_or(u64::MAX));
    let given = AtomicU64::new(0);
    in_parallel(
        py,
        threads
            .get()
            .min(usize::try_from(count).unwrap_or(usize::MAX)),
        || {
            let is_time = lasting.is_none_or(|lasting| begun.elapsed() < lasting);
            // One is played in any case, and none is passed over.
            let next = given.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| {
                ((is_time || number == 0) && number < count).then_some(number + 1)
            });
            first.checked_add(next.ok()?)
        },
        |seed, _| Ok(play(seed)),
        finished,
    )
}

/// Each of these jobs, with its number.
fn one_after_another<'a, StudyJob: Sync>(
    jobs: &'a [StudyJob],
) -> impl Fn() -> Option<(usize, &'a StudyJob)> + Sync {
    let begun = AtomicUsize::new(0);
    move || {
        let index = begun.fetch_add(1, Ordering::Relaxed);
        Some((index, jobs.get(index)?))
    }
}

/// Messages of a parallel program, read once and shared by all runs.
#[pyclass(frozen)]
pub(crate) struct KeyCacheTrace {
    trace: Arc<Trace>,
    ends_after: u64,
    program: OnceLock<Arc<ReplayProgram>>,
}

#[pymethods]
impl KeyCacheTrace {
    /// Longest file that can be a trace.
    #[classattr]
    const FILE_BYTES_MAX: usize = FILE_BYTES_MAX;

    /// Reads the content of a file; an error names the file.
    #[new]
    fn new(py: Python<'_>, file: &str, content: &[u8]) -> PyResult<Self> {
        let trace = py
            .detach(|| Trace::read(content))
            .map_err(|error| PyValueError::new_err(format!("{file}: {error}")))?;
        Ok(Self::of(trace))
    }

    /// Synthetic requests and answers of so many ranks.
    #[staticmethod]
    fn requests(ranks: usize, each: usize, seed: u64) -> PyResult<Self> {
        requests(ranks, each, seed).map(Self::of).map_err(refused)
    }

    /// What ran.
    #[getter]
    fn name(&self) -> &str {
        &self.trace.name
    }

    /// How many processes it had.
    #[getter]
    fn ranks(&self) -> usize {
        self.trace.ranks.len()
    }

    /// The same program on a processor that takes so many per cent of the time.
    fn with_computation(&self, percent: u32) -> PyResult<Self> {
        let slowed = Trace::clone(&self.trace).with_computation(percent);
        Ok(Self {
            ends_after: self.ends_after,
            ..Self::of(slowed.map_err(refused)?)
        })
    }

    /// The same program, as a job that ends when so many messages have been delivered; 0: at its end, or when `message_limit` says.
    fn ending_after(&self, messages: u64) -> Self {
        Self {
            trace: Arc::clone(&self.trace),
            ends_after: messages,
            program: OnceLock::new(),
        }
    }

    /// How many iterations of its main loop it made; 0 where nobody knows.
    #[getter]
    fn iterations(&self) -> u64 {
        self.trace.iterations
    }

    /// How many messages its calls are, those of collectives included.
    #[getter]
    fn messages(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.program(py)?.messages())
    }

    /// How many calls there are, all ranks together.
    #[getter]
    fn records(&self) -> usize {
        self.trace.records()
    }

    /// Computation of the rank that computed longest, in seconds.
    #[getter]
    fn compute_seconds(&self) -> f64 {
        let longest = self.trace.ranks.iter().map(|records| {
            let gaps = records.iter().map(|record| record.gap_ns);
            gaps.sum::<u64>()
        });
        longest.max().unwrap_or(0) as f64 / 1e9
    }

    /// Mean ON and OFF periods, with gaps of at least so much as OFF; `None` if it has not both.
    fn periods<'py>(&self, py: Python<'py>, gap_ns: u64) -> PyResult<Option<Bound<'py, PyDict>>> {
        let rules = PeriodRules {
            gap_ns,
            ..PeriodRules::default()
        };
        let Some(periods) = py.detach(|| Periods::of(&self.trace, &rules)) else {
            return Ok(None);
        };
        let answer = PyDict::new(py);
        answer.set_item("on_us", periods.on_us)?;
        answer.set_item("off_us", periods.off_us)?;
        answer.set_item("messages_per_on", periods.messages_per_on)?;
        Ok(Some(answer))
    }
}

impl KeyCacheTrace {
    fn of(trace: Trace) -> Self {
        Self {
            trace: Arc::new(trace),
            ends_after: 0,
            program: OnceLock::new(),
        }
    }

    /// The trace made ready to run on cards.
    fn program(&self, py: Python<'_>) -> PyResult<Arc<ReplayProgram>> {
        if let Some(program) = self.program.get() {
            return Ok(Arc::clone(program));
        }
        let program = py
            .detach(|| ReplayProgram::from_trace(&self.trace))
            .map_err(refused)?
            .ending_after(self.ends_after);
        Ok(Arc::clone(self.program.get_or_init(|| Arc::new(program))))
    }
}

/// Every parameter of a card, those that a scenario (TOML) leaves out included, as TOML.
#[pyfunction]
fn key_cache_parameters(scenario: &str) -> PyResult<String> {
    Parameters::from_toml(scenario)
        .map(|parameters| parameters.to_toml())
        .map_err(refused)
}

/// How many processes a cache serves.
#[pyfunction]
fn key_cache_capacity(py: Python<'_>, entries: u64, off_on: f64, hit: f64) -> PyResult<u64> {
    py.detach(|| OnOffParameters::new(off_on)?.capacity(entries, hit))
        .map_err(refused)
}

/// One run.
enum StudyJob {
    /// The keys of a trace through the caches of these cards.
    Trace {
        trace: Arc<Trace>,
        cards: Range<usize>,
        ranks_per_card: RanksPerCard,
        shape: CacheShape,
        lookup: Lookup,
    },
    /// Peers that talk and are silent in turn, through one cache.
    OnOff {
        traffic: Traffic,
        shape: CacheShape,
        packets: u64,
        seed: u64,
    },
    /// Cards in virtual time.
    Cards { study: Box<Study>, seed: u64 },
}

/// A cache without time.
struct CacheShape {
    geometry: Geometry,
    policy: ReplacementPolicy,
}

impl CacheShape {
    fn new(asked: &Bound<'_, PyDict>) -> PyResult<Self> {
        let (entries, ways) = (value(asked, "entries")?, value(asked, "ways")?);
        if entries > ENTRIES_MAX {
            let reason = format!("entries: got {entries}, expected at most {ENTRIES_MAX}");
            return Err(PyValueError::new_err(reason));
        }
        let geometry = Geometry::set_associative(entries, ways).map_err(refused)?;
        let policy = match value::<String>(asked, "policy")?.as_str() {
            "lru" => ReplacementPolicy::LeastRecentlyUsed,
            "clock" => ReplacementPolicy::Clock,
            "s3-fifo" => ReplacementPolicy::S3Fifo,
            got => return Err(no_such("policy", got, "\"lru\", \"clock\" or \"s3-fifo\"")),
        };
        Ok(Self { geometry, policy })
    }
}

impl StudyJob {
    /// What Python asks for; the kinds and their keys are those of `exoskel.sim`.
    fn new(asked: &Bound<'_, PyDict>) -> PyResult<Self> {
        match value::<String>(asked, "kind")?.as_str() {
            "trace" => {
                let trace: Bound<'_, KeyCacheTrace> = value(asked, "trace")?;
                let lookup = match value::<String>(asked, "lookup")?.as_str() {
                    "message" => Lookup::Message,
                    "packet" => Lookup::packets(PACKET_BYTES).map_err(refused)?,
                    got => return Err(no_such("lookup", got, "\"message\" or \"packet\"")),
                };
                let trace = Arc::clone(&trace.get().trace);
                let count = trace.ranks.len();
                let ranks_per_card =
                    RanksPerCard::of(&trace, value(asked, "ranks_per_card")?).map_err(refused)?;
                let each = usize::from(ranks_per_card.get());
                let cards = match value::<Option<usize>>(asked, "rank")? {
                    None => 0..count / each,
                    Some(rank) if rank < count => rank / each..rank / each + 1,
                    Some(rank) => {
                        return Err(PyValueError::new_err(format!(
                            "rank: got {rank}, expected one of the trace, 0 to {}",
                            count.saturating_sub(1)
                        )));
                    }
                };
                Ok(Self::Trace {
                    trace,
                    cards,
                    ranks_per_card,
                    shape: CacheShape::new(asked)?,
                    lookup,
                })
            }
            "on-off" => {
                let (keys, off_on) = (value(asked, "keys")?, value(asked, "off_on")?);
                let traffic = Traffic::new(keys, off_on, value(asked, "packets_per_on")?);
                let mut shape = CacheShape::new(asked)?;
                // Keys are numbered in sequence, as identifiers of connections are, and hardware takes their low bits.
                shape.geometry = shape.geometry.placed(Placement::LowBits);
                Ok(Self::OnOff {
                    traffic: traffic.map_err(refused)?,
                    shape,
                    packets: value(asked, "packets")?,
                    seed: value(asked, "seed")?,
                })
            }
            "cards" => {
                let scenario = value::<String>(asked, "scenario")?;
                let parameters = Parameters::from_toml(&scenario).map_err(refused)?;
                let traces: Vec<Bound<'_, KeyCacheTrace>> = value(asked, "traces")?;
                let programs = traces.iter().map(|trace| trace.get().program(asked.py()));
                let programs = programs.collect::<PyResult<_>>()?;
                let study = Study::new(parameters, programs).map_err(refused)?;
                Ok(Self::Cards {
                    study: Box::new(study),
                    seed: value(asked, "seed")?,
                })
            }
            got => Err(no_such("kind", got, "\"trace\", \"on-off\" or \"cards\"")),
        }
    }

    fn run(&self, stop: &AtomicBool) -> Result<Measured, JobFailure> {
        let go_on = || !stop.load(Ordering::Relaxed);
        Ok(match self {
            Self::Trace {
                trace,
                cards,
                ranks_per_card,
                shape,
                lookup,
            } => {
                let (geometry, policy) = (shape.geometry, shape.policy);
                let (cards, each) = (cards.clone(), *ranks_per_card);
                let hits = replay_on_cards(trace, cards, each, geometry, policy, *lookup, go_on);
                Measured::Keys(hits.ok_or(JobFailure::Stopped)?)
            }
            Self::OnOff {
                traffic,
                shape,
                packets,
                seed,
            } => {
                let hits = traffic.hits(*seed, *packets, shape.geometry, shape.policy, go_on);
                Measured::Keys(hits.ok_or(JobFailure::Stopped)?)
            }
            Self::Cards { study, seed } => {
                let mut run = study.start(*seed)?;
                while !run.advance(EVENTS_BETWEEN_LOOKS)? {
                    if !go_on() {
                        return Err(JobFailure::Stopped);
                    }
                }
                Measured::Cards(Box::new(run.outcome()))
            }
        })
    }
}

fn value<'py, Value>(asked: &Bound<'py, PyDict>, key: &str) -> PyResult<Value>
where
    Value: FromPyObjectOwned<'py>,
{
    let given = asked
        .get_item(key)?
        .ok_or_else(|| PyValueError::new_err(format!("got no {key}, expected one")))?;
    given.extract().map_err(|_| {
        PyValueError::new_err(format!(
            "{key}: got {given}, expected another kind of value"
        ))
    })
}

fn refused(reason: impl std::error::Error) -> PyErr {
    PyValueError::new_err(reason.to_string())
}

fn no_such(parameter: &str, got: &str, expected: &str) -> PyErr {
    PyValueError::new_err(format!("{parameter}: got {got:?}, expected {expected}"))
}

/// What a run has measured.
enum Measured {
    Keys(Hits),
    Cards(Box<RunOutcome>),
}

impl Measured {
    /// As Python has it: times in microseconds and milliseconds, shares in 0..1.
    fn to_dict<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let row = PyDict::new(py);
        match self {
            Self::Keys(hits) => {
                row.set_item("hit_rate", hits.hit_rate())?;
                row.set_item("lookups", hits.lookups)?;
                row.set_item("hits", hits.hits)?;
                row.set_item("digest", format!("{:016x}", hits.digest))?;
            }
            Self::Cards(outcome) => cards_row(&row, outcome)?,
        }
        Ok(row)
    }
}

fn cards_row(row: &Bound<'_, PyDict>, outcome: &RunOutcome) -> PyResult<()> {
    let microseconds = |picoseconds: u64| picoseconds as f64 / 1e6;
    row.set_item("latency_us", microseconds(outcome.packet_latency.mean_ps))?;
    row.set_item(
        "latency_p50_us",
        microseconds(outcome.packet_latency.p50_ps),
    )?;
    row.set_item(
        "latency_p99_us",
        microseconds(outcome.packet_latency.p99_ps),
    )?;
    row.set_item(
        "message_latency_us",
        microseconds(outcome.message_latency.mean_ps),
    )?;
    row.set_item(
        "message_latency_p99_us",
        microseconds(outcome.message_latency.p99_ps),
    )?;
    row.set_item("hit_rate", outcome.hit_rate())?;
    row.set_item("cache_hit_rate", outcome.cache_hit_rate())?;
    row.set_item("prefetch_hit_rate", outcome.prefetch_hit_rate())?;
    row.set_item("completion_ms", outcome.completion_ps as f64 / 1e9)?;
    row.set_item("messages", outcome.messages)?;
    row.set_item("packets", outcome.packets)?;
    row.set_item("lookups", outcome.lookups)?;
    row.set_item("joined_fetches", outcome.joined_fetches)?;
    row.set_item("evictions", outcome.evictions)?;
    row.set_item("prefetches", outcome.prefetches)?;
    row.set_item("key_memory_accesses", outcome.key_memory.accesses)?;
    row.set_item(
        "key_memory_wait_us",
        microseconds(outcome.key_memory.waited_mean_ps),
    )?;
    row.set_item("context_switches", outcome.context_switches)?;
    row.set_item("spun_ms", outcome.spun_ps as f64 / 1e9)?;
    row.set_item("events", outcome.events)?;
    row.set_item("digest", format!("{:016x}", outcome.digest))
}

/// Runs jobs on several threads; `finished` gets the number of each, and what it has measured or the error that ended it, as they come.
/// What `finished` raises ends the others.
#[pyfunction]
fn key_cache_runs(
    py: Python<'_>,
    jobs: Vec<Bound<'_, PyDict>>,
    threads: NonZeroUsize,
    finished: Py<PyAny>,
) -> PyResult<()> {
    let jobs: Vec<StudyJob> = jobs.iter().map(StudyJob::new).collect::<PyResult<_>>()?;
    in_parallel(
        py,
        threads.get().min(jobs.len()),
        one_after_another(&jobs),
        |(index, job), stop| match job.run(stop) {
            Ok(measured) => Ok((index, Ok(measured))),
            Err(JobFailure::Refused(reason)) => Ok((index, Err(reason))),
            Err(JobFailure::Stopped) => Err(JobFailure::Stopped),
        },
        |py, (index, ended)| {
            let told = match ended {
                Ok(measured) => finished.call1(py, (index, measured.to_dict(py)?)),
                Err(reason) => finished.call1(py, (index, PyValueError::new_err(reason))),
            };
            told.map(drop)
        },
    )
}
