//! The tasks of the driver's thread: its loop, one for each session and each attempt to get one, the listener, the renewal.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exoskel_flow::Departure;
use exoskel_identity::VerifiedIdentity;
use exoskel_link::handshake::Hello;
use exoskel_node::manager::Arrival;
use exoskel_node::manager::breaks::departure_of;
use exoskel_node::manager::hints::Hints;
use exoskel_node::manager::recruiter::SlotSource;

use super::attempt::{AttemptError, is_of_worker};
use super::child_process::ProcessEnd;
use super::driver::ManagerDriver;
use super::recruit::{RecruitingPlace, dial_child, dial_host};
use super::{ManagerConfig, Notice, Shared};
use crate::discovery::{HeardNews, Hearing};
use crate::establish::{EstablishError, Established, welcome_in_place};
use crate::host_file::HostFile;
use crate::listening::{Listener, SocketFile};
use crate::reception::{HandshakePlace, Reception, host_of};
use crate::refusals::{COUNTING_TIME, Refusals};
use crate::socket::Socket;
use crate::sources::{NodeConfigRenewal, RENEWAL_TIME};

/// How long an orderly end may take before the rest is cut off.
const SHUTDOWN_TIME: Duration = Duration::from_secs(1);

/// How long after its connection a child may take to end. One that ends does so in a moment, on a processor that has one for it.
const CHILD_END_TIME: Duration = Duration::from_secs(2);

/// Connections in the middle of their handshake at the listening address, at most.
const HANDSHAKES_MAX: usize = 64;

/// Of these, with one host: a worker's slots all dial in at once.
const HANDSHAKES_OF_HOST_MAX: usize = 32;

/// How often what was heard is looked at.
const HEARING_TIME: Duration = Duration::from_millis(100);

/// Workers of whose news a turn takes up what they tell of others.
const HEARSAY_OF_TURN_MAX: usize = 4;

/// How often places have their turn while nothing is heard.
const LOOKING_TIME: Duration = Duration::from_secs(1);

type Driver = Rc<RefCell<ManagerDriver>>;

/// Runs the driver until it is told to shut down.
pub(super) async fn run(
    mut config: ManagerConfig,
    listening: Option<(Listener, Option<SocketFile>)>,
    shared: Arc<Shared>,
) {
    let (renewal, hosts) = (config.renewal.take(), config.recruiting.host_file.take());
    let may_come = listening.is_some() || config.recruiting.hearing.is_some();
    let mut driver = ManagerDriver::new(config, may_come, shared.clone());
    let hearing = driver.take_hearing();
    let driver = Rc::new(RefCell::new(driver));
    // The socket's file goes when this function ends, before its listener does.
    let (listener, _file) = listening.unzip();
    if let Some(listener) = listener {
        tokio::task::spawn_local(listen(driver.clone(), listener));
    }
    if let Some(hosts) = hosts {
        tokio::task::spawn_local(watch_hosts(driver.clone(), hosts));
    }
    if let Some(hearing) = hearing {
        tokio::task::spawn_local(watch_network(driver.clone(), hearing));
    }
    if let Some(renewal) = renewal {
        tokio::task::spawn_local(renew(driver.clone(), renewal));
    }
    driver.borrow_mut().begin();
    while !driver.borrow().is_shutting_down() {
        let wishes = driver.borrow_mut().take_wishes();
        for place in wishes {
            tokio::task::spawn_local(attempt(driver.clone(), place));
        }
        let (timeout, now) = driver.borrow_mut().arm();
        tokio::select! {
            () = shared.wake.notified() => {}
            () = sleep_until(timeout, now) => {}
        }
        driver.borrow_mut().take_commands();
    }
    driver.borrow_mut().shut_down();
    let left = async {
        while driver.borrow().has_sessions() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let _ = tokio::time::timeout(SHUTDOWN_TIME, left).await;
    let mut children = driver.borrow_mut().take_children();
    children.end_all(SHUTDOWN_TIME).await;
}

async fn sleep_until(deadline: Option<Duration>, now: Duration) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.saturating_sub(now)).await,
        None => std::future::pending().await,
    }
}

/// Takes up new terms when there are any.
async fn renew(driver: Driver, mut renewal: NodeConfigRenewal) {
    loop {
        tokio::time::sleep(RENEWAL_TIME).await;
        match renewal.renew() {
            None => {}
            Some(Ok(terms)) => driver.borrow_mut().take_up(terms),
            Some(Err(reason)) => {
                let text =
                    format!("kept the credential, policy and revocation list of before: {reason}");
                driver.borrow_mut().tell(Notice::Warning(text));
            }
        }
    }
}

/// Takes up the host file when it has changed.
async fn watch_hosts(driver: Driver, mut hosts: HostFile) {
    loop {
        tokio::time::sleep(RENEWAL_TIME).await;
        match hosts.look() {
            None => {}
            Some((is_first, Ok(lines))) => driver.borrow_mut().relist(lines, is_first),
            Some((_, Err(reason))) => {
                let text = format!("kept the list of workers of before: {reason}");
                driver.borrow_mut().tell(Notice::Warning(text));
            }
        }
    }
}

/// Takes up who is heard, and who is heard no more.
async fn watch_network(driver: Driver, mut hearing: Hearing) {
    let mut hints = Hints::default();
    let epoch = Instant::now();
    let mut looked_at = None;
    let mut renewals = driver.borrow().renewals();
    let mut policy = driver.borrow().terms().policy.clone();
    loop {
        tokio::time::sleep(HEARING_TIME).await;
        let is_renewed = driver.borrow().renewals() != renewals;
        if is_renewed {
            renewals = driver.borrow().renewals();
            policy = driver.borrow().terms().policy.clone();
        }
        // Whoever stands in the list of workers is dialled where that says.
        let is_allowed = |name: &str| {
            policy.authorization().discovers(name) == Some(true) && !driver.borrow().lists(name)
        };
        if is_renewed {
            // What the policy of before did not allow was not kept.
            hints.retain(is_allowed);
        }
        let now = epoch.elapsed();
        // Where the system gives no socket now, it may later.
        if (is_renewed || hearing.is_over(now))
            && let Ok(again) = Hearing::new()
        {
            hearing = again;
            hints.ask_again(now);
        }
        let news = hearing.news(now);
        let mut is_quiet = news.is_empty();
        for heard in news {
            match heard {
                HeardNews::There(announcement, hint) => {
                    hints.heard(&announcement, &hint, is_allowed);
                }
                HeardNews::Gone(announcement) => hints.gone(&announcement),
            }
        }
        for _ in 0..HEARSAY_OF_TURN_MAX {
            let hearsay = driver.borrow_mut().take_hearsay();
            let Some((worker, heard)) = hearsay else {
                break;
            };
            hints.told(&worker, &heard, is_allowed);
            is_quiet = false;
        }
        // Trials end without news, too.
        if is_quiet && looked_at.is_some_and(|before| now < before + LOOKING_TIME) {
            continue;
        }
        looked_at = Some(now);
        let places = hints.places(now, |place| driver.borrow().trial(place));
        if !driver.borrow().hears(&places) {
            driver.borrow_mut().hear(&places);
        }
    }
}

/// Asks for one slot.
async fn attempt(driver: Driver, place: RecruitingPlace) {
    let terms = driver.borrow().terms().clone();
    let result = match &place {
        RecruitingPlace::Child(number) => {
            // A child that is started now would be nobody's to end.
            if driver.borrow().is_shutting_down() {
                return;
            }
            let started = driver.borrow_mut().start_child(*number);
            let loading_time = driver.borrow().child_loading_time();
            let dialled = dial_child(started, &terms, loading_time).await;
            dialled.map_err(|error| {
                let refusal = driver.borrow_mut().child_refusal(*number);
                refusal.map_or(error, AttemptError::Start)
            })
        }
        RecruitingPlace::Host(_, line) => {
            let is_wanted = || !driver.borrow().is_shutting_down();
            dial_host(line, &terms, is_wanted).await
        }
        RecruitingPlace::DialledIn(_) => return,
    };
    match result {
        Ok(established) => {
            if let RecruitingPlace::Child(number) = place {
                driver.borrow_mut().child_met(number);
            }
            serve(&driver, &established, &place);
        }
        Err(error) => driver.borrow_mut().attempt_failed(&place, error),
    }
}

/// Takes in a slot whose session has begun, and serves it to its last event.
///
/// The slot counts as soon as this returns, so that nobody recruits another in its place.
fn serve(driver: &Driver, established: &Established, place: &RecruitingPlace) {
    let joined = driver.borrow_mut().join(place, established);
    let Some(session) = joined else {
        return;
    };
    let (driver, connection) = (driver.clone(), established.connection.clone());
    let source = place.source();
    tokio::task::spawn_local(async move {
        let ended = connection
            .run(|event| driver.borrow_mut().event(session, event))
            .await;
        if let SlotSource::Child(number) = source
            && departure_of(&ended) == Departure::Lost
            && let Some(end) = child_end(&driver, number).await
        {
            driver.borrow_mut().process_ended(session, &end);
        }
        driver.borrow_mut().ended(session, &ended);
    });
}

/// How a child whose connection broke has ended, if it has: its connection goes a moment before it does.
async fn child_end(driver: &Driver, number: u32) -> Option<ProcessEnd> {
    let deadline = Instant::now() + CHILD_END_TIME;
    loop {
        let end = driver.borrow_mut().child_end(number);
        if end.is_some() || Instant::now() >= deadline {
            return end;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Accepts workers that dial in.
async fn listen(driver: Driver, listener: Listener) {
    let reception = Reception::new(HANDSHAKES_MAX, HANDSHAKES_OF_HOST_MAX);
    let refusals = Rc::new(RefCell::new(Refusals::default()));
    tokio::task::spawn_local(count_refusals(driver.clone(), refusals.clone()));
    loop {
        match listener.accept().await {
            Ok((socket, address)) => {
                let host = host_of(&socket);
                let (driver, refusals) = (driver.clone(), refusals.clone());
                reception.receive(host, async move |handshake| {
                    let place = RecruitingPlace::DialledIn(address.clone());
                    if let Err(error) = welcome_worker(&driver, socket, &place, &handshake).await {
                        let (who, why) = (place.to_string(), error.to_string());
                        let line = refusals.borrow_mut().note(host, &who, &why);
                        audit(&driver, line);
                        if is_of_worker(&error) {
                            // Each of its attempts comes from another port.
                            let place = host.map_or(address, |host| host.to_string());
                            let attempt = RecruitingPlace::DialledIn(place).attempt(error.into());
                            driver.borrow_mut().keep(attempt);
                        }
                    }
                });
                // Who is here goes on before the next one is taken in.
                tokio::task::yield_now().await;
            }
            // Out of descriptors, most likely: waiting lets some go.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Tells of refused connections that were only counted.
async fn count_refusals(driver: Driver, refusals: Rc<RefCell<Refusals>>) {
    loop {
        tokio::time::sleep(COUNTING_TIME).await;
        let lines = refusals.borrow_mut().tell();
        audit(&driver, lines);
    }
}

/// Lines about connections that came to nothing.
fn audit(driver: &Driver, lines: impl IntoIterator<Item = String>) {
    for line in lines {
        driver.borrow_mut().tell(Notice::Audit(line));
    }
}

async fn welcome_worker(
    driver: &Driver,
    socket: Socket,
    place: &RecruitingPlace,
    handshake: &HandshakePlace,
) -> Result<(), EstablishError> {
    let began = Cell::new(0);
    let terms = || {
        let driver = driver.borrow();
        began.set(driver.renewals());
        driver.terms().clone()
    };
    let is_admitted = Cell::new(false);
    let judge = |_: &Hello, _: &VerifiedIdentity| {
        handshake.leave();
        Ok(())
    };
    let call = async |peer: &VerifiedIdentity| {
        let mut waiting = None;
        loop {
            driver.borrow().check_current(began.get())?;
            let admitted = driver.borrow_mut().admit_worker(peer.identity().host())?;
            if admitted == Arrival::Placed {
                is_admitted.set(true);
                return Ok(());
            }
            let place = match waiting.take() {
                Some(place) => place,
                None => driver.borrow().wait_for_room()?,
            };
            place.called().await;
            waiting = Some(place);
        }
    };
    match welcome_in_place(socket, terms, judge, call, handshake).await {
        Ok(established) => serve(driver, &established, place),
        Err(error) => {
            if is_admitted.get() {
                driver.borrow_mut().leave_place(place);
            }
            return Err(error);
        }
    }
    Ok(())
}
