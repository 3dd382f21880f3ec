//! What a trace says of events.

use super::{PeerEvent, PeersRun};
use crate::peers::peer::WireNumber;
use crate::peers::wire::PeerPiece;

impl PeersRun {
    pub(super) fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            trace.note(self.now, &what());
        }
    }

    pub(super) fn note_event(&self, event: &PeerEvent) {
        let binding = |number: &usize| {
            let binding = &self.scenario.bindings[*number];
            format!("binding {number} of process {}", binding.holder)
        };
        let wire = |number: &WireNumber, end: usize| match self.wires.get(number) {
            Some(wire) => {
                let (from, to) = (wire.peers[1 - end], wire.peers[end]);
                format!("connection {number} from process {from} to {to}")
            }
            None => format!("connection {number}"),
        };
        match event {
            PeerEvent::Arrive(number, end, piece) => self.note(|| {
                let what = match piece {
                    PeerPiece::Hello(_) => "a Hello".to_owned(),
                    PeerPiece::Answer(_) => "an answer to a Hello".to_owned(),
                    PeerPiece::Bytes(bytes) => format!("{} bytes", bytes.len()),
                    PeerPiece::End => "the end".to_owned(),
                };
                format!("{what} on {}", wire(number, *end))
            }),
            PeerEvent::Broken(number, end) => {
                self.note(|| format!("told of the break: {}", wire(number, *end)));
            }
            PeerEvent::Impatience(_)
            | PeerEvent::Timer(..)
            | PeerEvent::Wake(..)
            | PeerEvent::Look => {}
            PeerEvent::Bind(number) => self.note(|| format!("{} is bound", binding(number))),
            PeerEvent::Say(number) => {
                self.note(|| format!("{} says number {}", binding(number), self.tried[*number]))
            }
            PeerEvent::Handled(peer, _, accepted) => {
                self.note(|| format!("process {peer} has handled a call of {accepted:?}"));
            }
            PeerEvent::Expire(..) => {}
            PeerEvent::Left(peer, ..) => self.note(|| format!("process {peer} is gone")),
            PeerEvent::TakeUp(peer) => self.note(|| format!("process {peer} takes up its rules")),
            PeerEvent::Begin(peer) => self.note(|| format!("process {peer} begins")),
            PeerEvent::Fault(number) => {
                self.note(|| format!("fault {:?}", self.scenario.faults[*number].1));
            }
        }
    }
}
