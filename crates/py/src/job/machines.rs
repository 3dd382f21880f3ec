//! What a job decides, for `exoskel.job_state`, `exoskel.agent` and `exoskel.launched_slots`, which keep the sockets and futures.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use exoskel_node::job::{
    AgentAction, AgentMachine, EndReason, FutureFate, GroupMember, JobError, JobMachine,
    JobPlacement, MemberEnd, NewProcess, PROCESSES_MAX, ProcessOrigin, Replacements, Sibling,
    StartRefusal,
};
use pyo3::exceptions::{PyPermissionError, PyValueError};
use pyo3::prelude::*;

use crate::error::{ExceptionKind, raise};

pub(super) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<JobMachineHandle>()?;
    module.add_class::<AgentMachineHandle>()?;
    module.add_class::<ReplacementsHandle>()
}

/// What the creator of a job decides.
#[pyclass(frozen, name = "JobMachine")]
struct JobMachineHandle(Mutex<JobMachine>);

/// What an agent of a job decides.
#[pyclass(frozen, name = "AgentMachine")]
struct AgentMachineHandle {
    machine: Mutex<AgentMachine>,
    begun: Instant,
}

/// When slots of a manager are replaced.
#[pyclass(frozen, name = "Replacements")]
struct ReplacementsHandle {
    machine: Mutex<Replacements>,
    begun: Instant,
}

/// Number, rank, agent.
type StartedProcess = (u32, u32, u32);
/// Number, exit code, reason, fate.
type EndedRow = (u32, Option<i32>, &'static str, &'static str);
/// The group, its processes by ranks and whether each is there, the agents.
type ToldRow = (u32, Vec<(u32, bool)>, Vec<u32>);

/// What a panic has left is no worse than it was: the machines check what they are told.
fn lock<Machine>(machine: &Mutex<Machine>) -> MutexGuard<'_, Machine> {
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

fn raised(py: Python<'_>, error: JobError) -> PyErr {
    let text = error.to_string();
    match error {
        JobError::TooMany | JobError::Misbehaved { .. } => PyValueError::new_err(text),
        JobError::AgentLost { .. } => raise(py, ExceptionKind::ProcessEnded, text),
        JobError::Over => raise(py, ExceptionKind::Link, text),
        JobError::NotOwn { .. } => PyPermissionError::new_err(text),
    }
}

fn started(member: GroupMember) -> StartedProcess {
    (member.number, member.rank, member.agent)
}

fn ended(process: MemberEnd) -> EndedRow {
    let reason = match process.reason {
        EndReason::Told => "told",
        EndReason::Lost => "lost",
        EndReason::Left => "left",
    };
    let fate = match process.fate {
        FutureFate::Settled => "settled",
        FutureFate::Done => "done",
        FutureFate::Failed => "failed",
    };
    (process.number, process.code, reason, fate)
}

fn all_ended(processes: Vec<MemberEnd>) -> Vec<EndedRow> {
    processes.into_iter().map(ended).collect()
}

#[pymethods]
impl JobMachineHandle {
    /// The numbers that a job has for its agents and processes.
    #[classattr]
    const PROCESSES_MAX: u32 = PROCESSES_MAX;

    #[new]
    fn new(job: String) -> Self {
        Self(Mutex::new(JobMachine::new(job)))
    }

    /// An agent is on its way. Returns its number.
    fn add_agent(&self, py: Python<'_>, host: String) -> PyResult<u32> {
        let added = lock(&self.0).add_agent(host);
        added.map_err(|error| raised(py, error))
    }

    /// It is known on which host an agent is.
    fn set_host(&self, agent: u32, host: String) {
        lock(&self.0).set_host(agent, host);
    }

    /// The job goes on without an agent that has not come.
    fn remove_agent(&self, agent: u32) {
        lock(&self.0).remove_agent(agent);
    }

    /// An agent can be asked now. Returns whether it couldn't before.
    fn agent_here(&self, agent: u32) -> bool {
        lock(&self.0).agent_here(agent)
    }

    /// Agents that have not come yet.
    fn agents_missing(&self) -> Vec<u32> {
        lock(&self.0).agents_missing()
    }

    /// Whether there is somebody left who starts processes.
    #[getter]
    fn has_hosts(&self) -> bool {
        lock(&self.0).has_hosts()
    }

    /// From now on, processes go on when the creator leaves.
    fn detach(&self) {
        lock(&self.0).detach();
    }

    /// An agent has gone, and so have its processes.
    fn agent_lost(&self, agent: u32) -> Vec<EndedRow> {
        all_ended(lock(&self.0).agent_lost(agent))
    }

    /// Makes a group of processes, on the first host only or on all; the group has the number of the first process.
    fn fill(
        &self,
        py: Python<'_>,
        count: u32,
        first_host: bool,
        starter: Option<u32>,
        is_function: bool,
    ) -> PyResult<Vec<StartedProcess>> {
        let placement = if first_host {
            JobPlacement::FirstHost
        } else {
            JobPlacement::AllHosts
        };
        let filled = lock(&self.0).fill(count, placement, starter, is_function);
        let members = filled.map_err(|error| raised(py, error))?;
        Ok(members.into_iter().map(started).collect())
    }

    /// Puts another process in the place of one that has ended, if that can be.
    fn replace(&self, process: u32) -> Option<StartedProcess> {
        lock(&self.0).replace(process).map(started)
    }

    /// Sees that processes are those of an agent.
    fn check_own(&self, py: Python<'_>, agent: u32, processes: Vec<u32>) -> PyResult<()> {
        let checked = lock(&self.0).check_own(agent, &processes);
        checked.map_err(|error| raised(py, error))
    }

    /// Processes of an agent are signed.
    fn sign(&self, py: Python<'_>, agent: u32, processes: Vec<u32>) -> PyResult<()> {
        let signed = lock(&self.0).sign(agent, &processes);
        signed.map_err(|error| raised(py, error))
    }

    /// Processes say where they are, by startpoints of nodes with these names. Returns those that are there by that.
    fn here(&self, py: Python<'_>, agent: u32, found: Vec<(u32, String)>) -> PyResult<Vec<u32>> {
        let there = lock(&self.0).here(agent, &found);
        there.map_err(|error| raised(py, error))
    }

    /// The functions of processes have returned.
    fn returned(&self, py: Python<'_>, agent: u32, processes: Vec<u32>) -> PyResult<()> {
        let returned = lock(&self.0).returned(agent, &processes);
        returned.map_err(|error| raised(py, error))
    }

    /// A process has ended, with those that it has started or should have.
    fn ended(
        &self,
        py: Python<'_>,
        agent: u32,
        process: u32,
        code: Option<i32>,
        joined: Vec<u32>,
    ) -> PyResult<Vec<EndedRow>> {
        let ended = lock(&self.0).ended(agent, process, code, &joined);
        ended.map(all_ended).map_err(|error| raised(py, error))
    }

    /// Processes were not started after all.
    fn not_started(&self, processes: Vec<u32>) -> Vec<EndedRow> {
        all_ended(lock(&self.0).not_started(&processes))
    }

    /// What agents are to be told next.
    fn next_telling(&self) -> Option<ToldRow> {
        let telling = lock(&self.0).next_telling()?;
        Some((telling.group, telling.members, telling.agents))
    }

    /// The job is over. Returns the agents that are to be asked to end.
    fn finish(&self) -> Vec<u32> {
        lock(&self.0).finish()
    }

    /// All that has not ended has.
    fn forget(&self) -> Vec<EndedRow> {
        all_ended(lock(&self.0).forget())
    }

    /// How many processes run, with those that have started them.
    fn running(&self, processes: Vec<u32>) -> usize {
        lock(&self.0).running(&processes)
    }

    /// Processes whose ends can be waited for.
    fn awaited(&self) -> Vec<u32> {
        lock(&self.0).awaited()
    }

    /// How many have not returned, and one that has ended before it did.
    fn unreturned(&self, processes: Vec<u32>) -> (usize, Option<u32>) {
        lock(&self.0).unreturned(&processes)
    }

    /// Whether all that need a certificate have one.
    #[getter]
    fn is_signed(&self) -> bool {
        lock(&self.0).is_signed()
    }
}

#[pymethods]
impl AgentMachineHandle {
    #[new]
    fn new(processes_max: Option<usize>) -> Self {
        Self {
            machine: Mutex::new(AgentMachine::new(processes_max)),
            begun: Instant::now(),
        }
    }

    /// A process is to be started, or has come: by an "agent", a "program" or an "invitation". Returns why not, if it isn't.
    fn start(
        &self,
        number: u32,
        rank: u32,
        size: u32,
        group: u32,
        origin: &str,
    ) -> PyResult<Option<&'static str>> {
        let origin = match origin {
            "agent" => ProcessOrigin::Agent,
            "program" => ProcessOrigin::Program,
            "invitation" => ProcessOrigin::Invitation,
            got => return Err(PyValueError::new_err(format!("got the origin {got}"))),
        };
        let started = lock(&self.machine).start(NewProcess {
            number,
            rank,
            size,
            group,
            origin,
        });
        Ok(started.err().map(|refusal| match refusal {
            StartRefusal::Known => "known",
            StartRefusal::Full => "full",
            StartRefusal::Over => "over",
        }))
    }

    /// It is known which process of the host a process is.
    fn started(&self, process: u32) {
        lock(&self.machine).started(process);
    }

    /// A process has sent its key.
    fn key(&self, py: Python<'_>, process: u32) -> PyResult<()> {
        let taken = lock(&self.machine).key(process);
        taken.map_err(|error| raised(py, error))
    }

    /// A process has said where it is.
    fn here(&self, py: Python<'_>, process: u32) -> PyResult<()> {
        let taken = lock(&self.machine).here(process);
        taken.map_err(|error| raised(py, error))
    }

    /// The function of a process has returned.
    fn returned(&self, py: Python<'_>, process: u32) -> PyResult<()> {
        let taken = lock(&self.machine).returned(process);
        taken.map_err(|error| raised(py, error))
    }

    /// A process asks for a sibling.
    fn ask(&self, py: Python<'_>, process: u32, rank: u32) -> PyResult<()> {
        let taken = lock(&self.machine).ask(process, rank);
        taken.map_err(|error| raised(py, error))
    }

    /// What a process learns of a sibling: its startpoint, or why it has none.
    fn sibling(&self, process: u32, rank: u32) -> Option<(Option<String>, String)> {
        let machine = lock(&self.machine);
        let sibling = machine.sibling(process, rank)?;
        Some((sibling.startpoint.clone(), sibling.reason.clone()))
    }

    /// The creator says who the members of a group are.
    fn siblings(&self, group: u32, siblings: Vec<(Option<String>, String)>) {
        let siblings = siblings
            .into_iter()
            .map(|(startpoint, reason)| Sibling { startpoint, reason });
        lock(&self.machine).siblings(group, siblings.collect());
    }

    /// Sends a signal to processes.
    fn signal(&self, processes: Vec<u32>, signal: i32) {
        lock(&self.machine).signal(&processes, signal);
    }

    /// A process has ended, or was not started after all.
    fn ended(&self, process: u32) {
        lock(&self.machine).ended(process);
    }

    /// What starts processes was ended.
    fn zygote_lost(&self) {
        lock(&self.machine).zygote_lost();
    }

    /// The job ends. Returns whether it didn't before.
    fn end(&self) -> bool {
        lock(&self.machine).end(self.begun.elapsed())
    }

    /// The creator of a detached job has left. Returns whether it hadn't before.
    fn leave(&self) -> bool {
        lock(&self.machine).leave()
    }

    /// Processes whose keys are to be signed in one request.
    fn keys_due(&self) -> Vec<u32> {
        lock(&self.machine).keys_due()
    }

    /// The keys of processes are signed.
    fn signed(&self, processes: Vec<u32>) {
        lock(&self.machine).signed(&processes);
    }

    /// Processes that are there, and those whose functions have returned, since this was asked last.
    fn news(&self) -> (Vec<u32>, Vec<u32>) {
        lock(&self.machine).news()
    }

    /// What is to be done next, to which process, and with what.
    fn next_action(&self) -> Option<(&'static str, u32, i64)> {
        Some(match lock(&self.machine).next_action()? {
            AgentAction::HangUp { process } => ("hang up", process, 0),
            AgentAction::Signal { process, signal } => ("signal", process, i64::from(signal)),
            AgentAction::Tell { process, rank } => ("tell", process, i64::from(rank)),
            AgentAction::Release { process } => ("release", process, 0),
        })
    }

    /// In how many seconds to call `handle_timeout`.
    fn next_timeout(&self) -> Option<f64> {
        let at = lock(&self.machine).next_timeout()?;
        Some(seconds_until(at, self.begun))
    }

    /// Does what is to be done by now.
    fn handle_timeout(&self) {
        lock(&self.machine).handle_timeout(self.begun.elapsed());
    }

    /// Whether the creator has left a detached job.
    #[getter]
    fn has_left(&self) -> bool {
        lock(&self.machine).has_left()
    }

    /// Whether all has ended, and the job is over.
    #[getter]
    fn is_over(&self) -> bool {
        lock(&self.machine).is_over()
    }

    /// The numbers and ranks of those that run.
    fn processes(&self) -> Vec<(u32, u32)> {
        lock(&self.machine).processes().collect()
    }
}

#[pymethods]
impl ReplacementsHandle {
    #[new]
    fn new(slots: u32) -> Self {
        Self {
            machine: Mutex::new(Replacements::new(slots, Duration::ZERO)),
            begun: Instant::now(),
        }
    }

    /// The process that was the slot of this rank has ended.
    fn ended(&self, process: u32, rank: u32) {
        lock(&self.machine).ended(process, rank, self.begun.elapsed());
    }

    /// The next process whose place is taken now.
    fn next_due(&self) -> Option<u32> {
        lock(&self.machine).next_due(self.begun.elapsed())
    }

    /// Nobody is wanted any more in the place of this rank, or not yet.
    fn vacate(&self, rank: u32) {
        lock(&self.machine).vacate(rank);
    }

    /// Somebody is started in a place that was vacant.
    fn occupy(&self, rank: u32) {
        lock(&self.machine).occupy(rank, self.begun.elapsed());
    }

    /// There was no host for the slot of this rank.
    fn no_host(&self, rank: u32) {
        lock(&self.machine).no_host(rank);
    }

    /// In how many seconds a place is taken next.
    fn next_timeout(&self) -> Option<f64> {
        let at = lock(&self.machine).next_timeout()?;
        Some(seconds_until(at, self.begun))
    }

    /// Whether nobody is to wait for a slot any more.
    #[getter]
    fn is_hopeless(&self) -> bool {
        lock(&self.machine).is_hopeless(self.begun.elapsed())
    }
}

fn seconds_until(at: Duration, begun: Instant) -> f64 {
    at.saturating_sub(begun.elapsed()).as_secs_f64()
}
