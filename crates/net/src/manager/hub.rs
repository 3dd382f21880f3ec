//! The driver: carries events of connections to the router and its effects back.

mod actions;
mod answers;
mod blame;
mod membership;

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exoskel_flow::Tickets;
use exoskel_link::{CloseReason, LinkId};
use exoskel_task::{Router, router};

use self::blame::Breaks;
use crate::connection::Connection;
use crate::establish::{Established, Standing};
use crate::listening::{Listener, SocketFile};
use crate::manager::recruit::Recruiter;
use crate::manager::roster::{Roster, WorkerKey};
use crate::manager::{Command, ManagerConfig, Notice, Passage, Shared, StreamPlan, recruit};
use crate::outlet::{Origin, Outlet, StreamEnd};
use crate::sources::TermsRenewal;

/// How long an orderly end may take before the rest is cut off.
const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// Places where attempts have failed, of which the last one is kept for the user.
const ATTEMPTS_KEPT: usize = 1000;

/// Workers that can't run the program, of which the reasons are kept.
const UNFIT_MAX: usize = 1000;

/// How often credential, policy and revocation list are looked at.
const RENEWAL_TIME: Duration = Duration::from_secs(2);

/// Everything the driver owns.
pub(super) struct Hub {
    pub(super) config: ManagerConfig,
    pub(super) shared: Arc<Shared>,
    pub(super) recruiter: Recruiter,
    router: Router,
    epoch: Instant,
    next_slot: u32,
    slots: HashMap<u32, Slot>,
    /// Where the outcomes of each stream go.
    outlets: HashMap<u64, Arc<Outlet>>,
    roster: Roster,
    /// What workers, by name, lack of what the program needs.
    unfit: HashMap<String, String>,
    breaks: Breaks,
    /// Connections with something queued.
    dirty: Vec<u32>,
    /// When the driver's loop wakes for the router.
    armed: Option<Duration>,
    shutting_down: bool,
}

struct Slot {
    connection: Arc<Connection>,
    tasks: LinkId,
    code: LinkId,
    origin: Arc<Origin>,
    standing: Standing,
    worker: WorkerKey,
    ready: bool,
    /// It lacks what the program needs and is on its way out.
    unfit: bool,
}

/// What a session's end says of where the slot came from.
enum Verdict {
    /// It is as good as new.
    Good,
    /// Another attempt may end better.
    Failed,
    /// No other attempt can.
    Hopeless,
}

/// Runs the driver until it is told to shut down.
pub(super) async fn drive(
    config: ManagerConfig,
    listening: Option<(Listener, Option<SocketFile>)>,
    shared: Arc<Shared>,
) {
    let recruiter = Recruiter::new(&config.recruiting, listening.is_some());
    let router = Router::new(config.scheduler.clone());
    let hub = Rc::new(RefCell::new(Hub {
        config,
        shared: shared.clone(),
        recruiter,
        router,
        epoch: Instant::now(),
        next_slot: 0,
        slots: HashMap::new(),
        outlets: HashMap::new(),
        roster: Roster::default(),
        unfit: HashMap::new(),
        breaks: Breaks::default(),
        dirty: Vec::new(),
        armed: None,
        shutting_down: false,
    }));
    // The socket's file goes when this function ends, before its listener does.
    let (listener, _file) = listening.unzip();
    if let Some(listener) = listener {
        tokio::task::spawn_local(recruit::listen(hub.clone(), listener));
    }
    if let Some(renewal) = hub.borrow_mut().config.renewal.take() {
        tokio::task::spawn_local(renew(hub.clone(), renewal));
    }
    recruit::fill(&hub);
    loop {
        let (timeout, now) = hub.borrow_mut().arm();
        tokio::select! {
            () = shared.wake.notified() => {}
            () = sleep_until(timeout, now) => {}
        }
        let mut borrowed = hub.borrow_mut();
        for command in shared.take_commands() {
            borrowed.command(command);
        }
        borrowed.pump();
        if borrowed.shutting_down {
            break;
        }
    }
    shut_down(&hub).await;
}

/// Takes up new terms when there are any, and judges all sessions by them.
async fn renew(hub: Rc<RefCell<Hub>>, mut renewal: TermsRenewal) {
    loop {
        tokio::time::sleep(RENEWAL_TIME).await;
        match renewal.renew() {
            None => {}
            Some(Ok(terms)) => hub.borrow_mut().take_up(terms),
            Some(Err(reason)) => {
                let text =
                    format!("kept the credential, policy and revocation list of before: {reason}");
                hub.borrow().shared.notice(Notice::Warning(text));
            }
        }
    }
}

async fn sleep_until(deadline: Option<Duration>, now: Duration) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.saturating_sub(now)).await,
        None => std::future::pending().await,
    }
}

async fn shut_down(hub: &Rc<RefCell<Hub>>) {
    let connections: Vec<Arc<Connection>> = hub
        .borrow()
        .slots
        .values()
        .map(|slot| slot.connection.clone())
        .collect();
    for outlet in hub.borrow().outlets.values() {
        outlet.end(StreamEnd::Closed);
    }
    for connection in connections {
        connection.close(CloseReason::Finished);
    }
    let left = async {
        while !hub.borrow().slots.is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = tokio::time::timeout(SHUTDOWN_TIME, left).await;
    let mut recruiter = std::mem::take(&mut hub.borrow_mut().recruiter);
    recruiter.end_children(SHUTDOWN_TIME).await;
}

/// Takes in a slot whose session has begun and serves it to its last event.
///
/// The slot counts as soon as this returns, so that nobody recruits another in its place.
pub(super) fn serve(hub: &Rc<RefCell<Hub>>, established: &Established, source: recruit::Source) {
    // Only our own children are local, whatever a peer says of itself.
    let is_child = matches!(source, recruit::Source::Local(_));
    let joined = hub.borrow_mut().join(established, is_child);
    let slot = match joined {
        Ok(slot) => slot,
        Err(error) => {
            hub.borrow_mut().attempt_failed(&source, error);
            return recruit::replace(hub, source);
        }
    };
    let (hub, connection) = (hub.clone(), established.connection.clone());
    tokio::task::spawn_local(async move {
        let ended = connection
            .run(|event| hub.borrow_mut().event(slot, event))
            .await;
        let verdict = hub.borrow_mut().leave(slot, &ended);
        match verdict {
            Verdict::Hopeless => {
                hub.borrow_mut().recruiter.failed(&source, true);
                hub.borrow().tell_hope();
            }
            Verdict::Failed => hub.borrow_mut().recruiter.failed(&source, false),
            Verdict::Good => hub.borrow_mut().recruiter.proved(&source),
        }
        recruit::replace(&hub, source);
    });
}

impl Hub {
    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Open(number, plan, outlet) => self.open(number, plan, outlet),
            Command::Admit(number, batch) => self.router.admit(number, batch, now),
            Command::EndOfInput(number) => self.router.end_of_input(number, now),
            Command::Taken {
                stream,
                first,
                count,
            } => self.router.taken(stream, first, count, now),
            Command::Cancel(number, index, reply) => {
                // The user may have gone; then nobody needs the answer.
                let _ = reply.send(self.router.cancel(number, index, now));
            }
            Command::Close(number) => {
                self.outlets.remove(&number);
                self.router.close(number, now);
            }
            Command::Report(reply) => {
                let live = self.slots.iter().filter_map(|(number, slot)| {
                    Some((slot.worker.clone(), self.router.slot_statistics(*number)?))
                });
                let _ = reply.send(self.roster.report(live));
            }
            Command::Shutdown => self.shutting_down = true,
        }
    }

    fn open(&mut self, number: u64, plan: StreamPlan, outlet: Arc<Outlet>) {
        let now = self.now();
        let tickets = if plan.unbounded {
            Tickets::Unbounded
        } else {
            Tickets::Bounded
        };
        let plan = router::StreamPlan {
            skeleton: plan.skeleton,
            functions: plan.functions,
            call: plan.call,
            tickets,
        };
        if let Err(error) = self.router.open(number, plan, now) {
            return outlet.end(error.into());
        }
        if let Some(end) = self.recruiter.given_up() {
            outlet.end(end.clone());
        }
        self.outlets.insert(number, outlet);
    }

    fn tell_watch(&mut self, slot: u32, is_sent: bool, bytes: u64) {
        let at = self.now();
        if let Some(watch) = &mut self.config.watch {
            watch(Passage {
                slot,
                is_sent,
                bytes,
                at,
            });
        }
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.shutting_down
    }

    /// When the loop has to wake at the latest, and the time now.
    fn arm(&mut self) -> (Option<Duration>, Duration) {
        self.armed = self.router.next_timeout();
        (self.armed, self.now())
    }

    /// Lets a user thread that waits look at the notices.
    fn wake_users(&self) {
        for outlet in self.outlets.values() {
            outlet.notify();
        }
    }
}
