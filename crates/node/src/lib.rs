//! What one process decides about its sessions: which links there are and whose they are, who joins, gets work and has to
//! leave. Without sockets, clocks and threads: `net` drives this over the network, `sim` through virtual time.
//!
//! # How a machine is driven
//!
//! A driver owns what is outside: transports, [`Session`](exoskel_link::Session)s, clocks, processes. A machine knows its
//! sessions by number ([`SessionId`]). Into it go what happens: events of sessions, their ends, attempts that came to
//! nothing, what users want, and with each of these the time. Out of it come [`ManagerAction`](manager::ManagerAction)s, one by one, for
//! as long as [`poll_action`](manager::ManagerMachine::poll_action) gives any: messages with the link they go by, outcomes,
//! notices, and wishes (dial there, start a child, close that session). A session is lent to its machine once, when it
//! begins, so that its links are opened. When nothing happens, the machine is asked again at its `next_timeout`.
//!
//! Whoever runs items is not to wait for anybody, so a [`SlotMachine`]'s answers are given to the thread that asked.
//!
//! # Layout
//!
//! * [`session`]: the numbers of sessions
//! * [`endpoints`]: the endpoints of a process and the links to them; several users share one session by it
//! * [`manager`]: [`ManagerMachine`]: slots that come and go, their answers, streams of items
//!   * `manager/membership`: joining, being ready, leaving, being judged again; `answers`: what slots say
//!   * [`recruiter`](manager::recruiter): who is asked for a slot next, and when nobody is left
//!   * [`breaks`](manager::breaks): whose doing a session's end is, and who breaks too many
//!   * [`worker_table`](manager::worker_table): which workers there are and were, and what they did
//!   * [`notice`](manager::notice): what the user is told
//!   * [`hints`](manager::hints): workers that are heard, and whether they are dialled; `hearsay`: what workers tell of others
//! * [`heard`]: workers that are heard, for whoever shows them or tells of them
//! * [`links`]: [`LinkMachine`]: the endpoints and startpoints of a program of its own
//! * [`job`]: [`JobMachine`] and [`AgentMachine`]: processes that are started together and end together
//! * [`knocking`]: how a slot asks a manager that it dials
//! * [`slot`]: [`SlotMachine`]: one slot's end of its session
//! * [`gateway`]: [`GatewayTables`]: tunnels, registered nodes and calls of a gateway
//!
//! Another kind of process is another machine beside these two, over the same tables: it names its own users in
//! [`Endpoints`], takes the events of its links, and leaves the rest to the others. What has to be kept of outcomes is kept
//! where they leave, at [`Deliver`](manager::ManagerAction::Deliver).

#![forbid(unsafe_code)]

pub mod endpoints;
pub mod gateway;
pub mod heard;
pub mod job;
pub mod knocking;
pub mod links;
pub mod manager;
pub mod session;
pub mod slot;

pub use endpoints::Endpoints;
pub use gateway::GatewayTables;
pub use job::{AgentMachine, JobMachine};
pub use links::LinkMachine;
pub use manager::ManagerMachine;
pub use session::SessionId;
pub use slot::SlotMachine;
