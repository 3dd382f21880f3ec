//! The doors through which couplings, and what members say of themselves, come in.

#![allow(dead_code, reason = "each target goes through one of the doors")]

use exoskel_redist::Layout;
use exoskel_transfer::{
    Coupler, Coupling, FrameReader, Keeper, KeeperAction, MemberId, MemberMessage, OWN_KEEPER,
    PROTOCOL,
};

const COUPLING: &str = "[program.a]\n[program.b]\n[[connection]]\nfrom = \"a.x\"\nto = \"b.y\"\nselect = \"[::2]\"\n\
    [[connection]]\nfrom = \"b.y\"\nto = \"a.z\"\n";

/// Plans of more messages than this are made elsewhere.
const PROCESSES_MAX: u32 = 64;

pub(crate) fn coupling(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(coupling) = Coupling::parse(text)
    {
        for (number, terms) in coupling.connections().iter().enumerate() {
            assert!(coupling.programs().contains_key(&terms.from.program));
            assert!(coupling.place_into(number) <= number);
        }
    }
}

/// What two members say in turn, so many bytes each; then one of them is lost.
pub(crate) fn attach(bytes: &[u8]) {
    let coupling = Coupling::parse(COUPLING).expect("it is one");
    let (mut keeper, mut coupler) = (
        Keeper::new(coupling.clone(), OWN_KEEPER, false),
        Coupler::new(coupling),
    );
    let mut readers: [FrameReader; 2] = Default::default();
    for (number, piece) in bytes.chunks(512).enumerate() {
        let member = number % 2;
        readers[member].take(piece);
        loop {
            match readers[member].message::<MemberMessage>() {
                Ok(Some(mut message)) => {
                    // What was kept when the protocol was an earlier one still gets in.
                    if let MemberMessage::Attach(request) = &mut message
                        && request.protocol < PROTOCOL
                    {
                        request.protocol = PROTOCOL;
                    }
                    if let MemberMessage::Array { layout, .. } = &message
                        && let Ok(layout) = layout.layout()
                    {
                        of_layout(&layout);
                    }
                    if is_large(&message) {
                        return;
                    }
                    keeper.hear(member as MemberId, message);
                    run(&mut keeper, &mut coupler);
                }
                Ok(None) => break,
                Err(_) => {
                    keeper.lost(member as MemberId, "it says what can't be");
                    run(&mut keeper, &mut coupler);
                    return;
                }
            }
        }
    }
    keeper.lost(0, "its process has ended");
    coupler.program_ended("b");
    run(&mut keeper, &mut coupler);
}

/// A plan of many messages takes its time, which says nothing.
fn is_large(message: &MemberMessage) -> bool {
    match message {
        MemberMessage::Array { layout, .. } => {
            layout.grid.iter().any(|count| *count > PROCESSES_MAX)
        }
        _ => false,
    }
}

fn of_layout(layout: &Layout) {
    let processes = layout.processes();
    assert!(processes > 0);
    let shape = layout.local_shape(processes - 1);
    assert_eq!(shape.len(), layout.shape().len());
}

fn run(keeper: &mut Keeper, coupler: &mut Coupler) {
    loop {
        while let Some((_, order)) = coupler.next_order() {
            keeper.order(order);
        }
        match keeper.next_action() {
            None => return,
            Some(KeeperAction::Report(report)) => coupler.report(OWN_KEEPER, report),
            Some(_) => {}
        }
    }
}
