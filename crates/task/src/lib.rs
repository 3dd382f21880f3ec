//! What a manager and its slots say to each other about items, and what each of them does about it, without I/O.
//!
//! A [`Router`] is the manager's side: it owns the [`Scheduler`](exoskel_flow::Scheduler) and the tokens of all streams, turns
//! actions into messages, and answers into outcomes. A [`SlotQueue`] is a slot's side: it takes frames in, hands items out one
//! by one, and gathers results. Between them are messages, which something else carries: `net` over sockets, `sim`
//! through virtual time. Nothing here reads a clock or knows that links exist.
//!
//! # Layout
//!
//! * [`payload`], [`message`]: items and instructions as they travel
//! * [`outcome`]: what an item came to, and where its bytes come from
//! * [`router`]: the manager's side; `tokens`: what waits there between segments
//! * [`slot_queue`]: the slot's side

#![forbid(unsafe_code)]

pub mod message;
pub mod outcome;
pub mod payload;
pub mod router;
pub mod slot_queue;
mod tokens;

pub use router::Router;
pub use slot_queue::SlotQueue;
