//! The doors through which the words of couplers and keepers of other hosts come in, and what keepers tell their members.

#![allow(dead_code, reason = "each target goes through one of the doors")]

use exoskel_redist::{Layout, PlanSide, RedistributionPlan};
use exoskel_transfer::{
    AttachRequest, ConnectedTerms, ConnectionTerms, Coupler, CouplerOrder, CouplerWord, Coupling,
    FrameReader, JoinRequest, Keeper, KeeperAction, KeeperId, KeeperMessage, KeeperReport,
    LayoutDescription, MemberMessage, OWN_KEEPER, PieceHead, SaidReport, Sharing, Variable,
    WantedVersion, Welcome,
};

const COUPLING: &str = "[program.a]\n[program.b]\n[[connection]]\nfrom = \"a.x\"\nto = \"b.y\"\nselect = \"[::2]\"\n\
    [[connection]]\nfrom = \"b.y\"\nto = \"a.z\"\n";

/// Plans of more messages, and of longer axes, are made elsewhere.
const PROCESSES_MAX: u32 = 64;
const LENGTH_MAX: u64 = 1 << 16;

/// Two hosts, each with a process, whose arrays are connected both ways.
struct Hosts {
    coupler: Coupler,
    keepers: [Keeper; 2],
}

impl Hosts {
    fn new() -> Self {
        let coupling = Coupling::parse(COUPLING).expect("it is one");
        let mut coupler = Coupler::new(coupling.clone());
        let joined = coupler.join().expect("it is the first one").keeper;
        let keepers = [OWN_KEEPER, joined].map(|id| Keeper::new(coupling.clone(), id, true));
        let mut hosts = Self { coupler, keepers };
        for (host, program, arrays) in [(0, "a", &[("x", 8), ("z", 4)][..]), (1, "b", &[("y", 4)])]
        {
            let attach = MemberMessage::Attach(AttachRequest::new(program, 0, 1));
            hosts.hear(host, attach);
            for (name, length) in arrays {
                let name = (*name).to_owned();
                let layout = layout(*length);
                hosts.hear(host, MemberMessage::Array { name, layout });
            }
        }
        hosts
    }

    fn hear(&mut self, host: usize, message: MemberMessage) {
        self.keepers[host].hear(1, message);
        self.run();
    }

    /// Carries what they say to each other, until nobody says anything more.
    fn run(&mut self) {
        loop {
            while let Some((whom, order)) = self.coupler.next_order() {
                for keeper in &mut self.keepers {
                    if whom.is_none_or(|whom| whom == keeper.id()) {
                        keeper.order(order.clone());
                    }
                }
            }
            while self.coupler.next_given_up().is_some() {}
            let mut is_quiet = true;
            for host in 0..self.keepers.len() {
                while let Some(action) = self.keepers[host].next_action() {
                    is_quiet = false;
                    self.act(host, action);
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    fn act(&mut self, host: usize, action: KeeperAction) {
        match action {
            KeeperAction::Report(report) => {
                self.coupler.report(self.keepers[host].id(), report);
            }
            KeeperAction::Want { keeper, wanted } => {
                if let Some(other) = self.of(keeper) {
                    other.wanted(wanted);
                }
            }
            KeeperAction::Depart { pair, version, .. } => {
                let keeper = &mut self.keepers[host];
                if let Some(cut) = keeper.packing(pair) {
                    let sender = keeper.id();
                    for piece in 0..cut.count() {
                        let head = PieceHead {
                            keeper: sender,
                            pair,
                            version,
                            piece,
                        };
                        self.take_piece(1 - host, &head);
                    }
                }
                self.keepers[host].departed(pair);
            }
            _ => {}
        }
    }

    fn of(&mut self, keeper: KeeperId) -> Option<&mut Keeper> {
        self.keepers.iter_mut().find(|one| one.id() == keeper)
    }

    /// As the driver does it, without the bytes.
    fn take_piece(&mut self, host: usize, head: &PieceHead) {
        let keeper = &mut self.keepers[host];
        if keeper.expected(head).is_none() {
            return;
        }
        let cut = keeper.unpacking(head.pair);
        match cut.filter(|cut| head.piece < cut.count()) {
            Some(cut) => {
                assert!(cut.piece(head.piece).bytes() > 0);
                keeper.arrived(head, head.piece + 1 == cut.count());
            }
            None => keeper.not_arrived(head),
        }
    }

    /// A line from another host, of whatever kind it can be. The driver lets nobody speak for another keeper.
    fn take(&mut self, line: &[u8]) {
        if let Ok(CouplerWord::Order(order)) = serde_json::from_slice(line)
            && !is_large_order(&order)
        {
            self.keepers[1].order(order);
        } else if let Ok(said) = serde_json::from_slice::<SaidReport>(line)
            && said.keeper == self.keepers[1].id()
            && !is_large_report(&said.report)
        {
            if let KeeperReport::Gone(gone) = &said.report {
                self.keepers[0].told_gone(said.keeper, gone.clone());
            }
            self.coupler.report(said.keeper, said.report);
        } else if let Ok(wanted) = serde_json::from_slice::<WantedVersion>(line)
            && wanted.keeper == self.keepers[1].id()
        {
            self.keepers[0].wanted(wanted);
        } else if let Ok(head) = serde_json::from_slice::<PieceHead>(line)
            && head.keeper == self.keepers[1].id()
        {
            self.take_piece(0, &head);
        } else if let Ok(message) = serde_json::from_slice::<MemberMessage>(line)
            && !matches!(
                message,
                MemberMessage::Attach(_) | MemberMessage::Array { .. }
            )
        {
            self.keepers[0].hear(1, message);
        }
        let _ = serde_json::from_slice::<JoinRequest>(line);
        if let Ok(welcome) = serde_json::from_slice::<Welcome>(line) {
            let _ = Coupling::new(Default::default(), welcome.connections);
        }
        self.run();
    }
}

/// Lines, each of which is said by another host or by the one member here.
pub(crate) fn between_hosts(bytes: &[u8]) {
    let mut hosts = Hosts::new();
    for line in bytes.split(|byte| *byte == b'\n') {
        hosts.take(line);
    }
    let lost = hosts.keepers[1].id();
    hosts.coupler.keeper_lost(lost, "it has closed the session");
    hosts.keepers[0].keeper_unreachable(lost, "it has closed the session");
    hosts.keepers[0].coupler_lost("it has closed the session");
    hosts.run();
}

/// What a member hears of its keeper. Layouts that fit give the same elements at both ends.
pub(crate) fn told(bytes: &[u8]) {
    let mut reader = FrameReader::default();
    reader.take(bytes);
    while let Ok(Some(message)) = reader.message::<KeeperMessage>() {
        if let KeeperMessage::Connected { terms, .. } = message {
            connected(*terms);
        }
    }
}

fn connected(terms: ConnectedTerms) {
    if is_large(&terms.source) || is_large(&terms.target) {
        return;
    }
    let (Ok(source), Ok(target)) = (terms.source.layout(), terms.target.layout()) else {
        return;
    };
    for (layout, said) in [(&source, &terms.source), (&target, &terms.target)] {
        assert_eq!(LayoutDescription::of(layout).layout().as_ref(), Ok(layout));
        assert_eq!(layout.shape(), said.shape);
    }
    let name = |text: &str| Variable {
        program: "a".to_owned(),
        name: text.to_owned(),
    };
    let connection = ConnectionTerms {
        from: name("x"),
        to: name("y"),
        select: terms.select,
        into: terms.into,
        permute: terms.permute,
        every: 1,
    };
    let Ok(mapping) = connection.mapping(&source, &target) else {
        return;
    };
    let elements = |side, layout: &Layout| -> u64 {
        let ranks = 0..layout.processes();
        let plans =
            ranks.map(|rank| RedistributionPlan::new(&source, &target, &mapping, side, rank));
        plans.map(|plan| plan.elements()).sum()
    };
    assert_eq!(
        elements(PlanSide::Source, &source),
        elements(PlanSide::Target, &target)
    );
}

fn layout(length: u64) -> LayoutDescription {
    LayoutDescription {
        shape: vec![length],
        element: "<f8".to_owned(),
        sharing: vec![Sharing::Word("block".to_owned())],
        grid: vec![1],
        halo: vec![0],
        fortran: false,
    }
}

fn is_large(layout: &LayoutDescription) -> bool {
    let processes = layout
        .grid
        .iter()
        .try_fold(1_u32, |all, count| all.checked_mul(*count));
    let elements = layout
        .shape
        .iter()
        .try_fold(1_u64, |all, length| all.checked_mul(*length));
    processes.is_none_or(|count| count > PROCESSES_MAX)
        || elements.is_none_or(|count| count > LENGTH_MAX)
}

fn is_large_order(order: &CouplerOrder) -> bool {
    match order {
        CouplerOrder::Connect { source, target, .. } => {
            is_large(&source.layout) || is_large(&target.layout)
        }
        _ => false,
    }
}

fn is_large_report(report: &KeeperReport) -> bool {
    matches!(report, KeeperReport::Array { layout, .. } if is_large(layout))
}
