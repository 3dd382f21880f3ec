//! Sessions that begin and end: one for each pair of processes, and what becomes of links when it is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use exoskel_identity::Identity;
use exoskel_link::capability::Presentation;
use exoskel_link::{
    CloseReason, Ended, LinkId, LinkLife, LinkRefusal, Protection, Resumption, ResumptionKey,
    Session, SessionError,
};

use super::binding::send_all;
use super::endpoint::{AcceptedId, AcceptedLink};
use super::hints::has_place;
use super::judgement::judge;
use super::lasting::LastingEnd;
use super::{
    AskedLink, EndedProcess, FailedAttempts, Happening, LinkError, LinkMachine, LinkPolicy,
    LinkSession, PeerProcess, SessionPeer, Use, Want, WantedProcess,
};
use crate::session::SessionId;

/// Links of others that are kept while no session carries them, at most.
pub const AWAY_LINKS_MAX: usize = 4096;

/// The bytes of their calls ([`LinkCall::weight`](super::LinkCall::weight)) and answers, at most.
pub const AWAY_BYTES_MAX: u64 = 256 << 20;

/// The links of one node that no session carries: since when, and their weights.
#[derive(Default)]
struct AwayLinks {
    links: Vec<(Option<Duration>, AcceptedId, u64)>,
    bytes: u64,
}

/// What a link that is asked for resumes.
enum Resumed {
    /// Nothing: what is to be kept of it, if it outlives its session.
    Nothing(Option<LastingEnd>),
    Kept(AcceptedId),
    /// One that its opener has closed: so many messages have come by it.
    Ended {
        received: u64,
    },
}

impl LinkMachine {
    /// The processes that links need, to which there is no session and nobody dials yet. Say what came of it: [`LinkMachine::begin`] or
    /// [`LinkMachine::unreachable`].
    pub fn take_wants(&mut self, now: Duration) -> Vec<Want> {
        let mut wants: Vec<Want> = Vec::new();
        for binding in self.bindings.values() {
            let mut sessions = self.sessions.values().filter(|one| !one.is_retiring);
            let is_new = binding.is_wanted()
                && binding.away.is_none()
                && !sessions.any(|one| binding.leads_to(&one.process, &one.hints));
            // Who may be the same process is dialled once: what comes of it says whether somebody else has to be.
            if is_new && !wants.iter().any(|want| want.peer.may_be(&binding.peer)) {
                wants.push(Want {
                    peer: binding.peer.clone(),
                    hints: binding.startpoint.hints().to_vec(),
                });
            }
        }
        let again = self.dialling.due(now).into_iter();
        let again: Vec<_> = again
            .filter(|want| !wants.iter().any(|other| other.peer.may_be(&want.peer)))
            .filter(|want| self.session_to(&want.peer).is_none())
            .collect();
        wants.extend(again);
        wants.retain(|want| !self.dialling.is_dialled(&want.peer));
        wants.iter().for_each(|want| self.dialling.begin(want));
        wants
    }

    /// When [`take_wants`](Self::take_wants) or [`give_up`](Self::give_up) have something to do without anything else happening.
    #[must_use]
    pub fn next_timeout(&self) -> Option<Duration> {
        let again = self
            .dialling
            .next(|peer| self.session_to(&peer.into()).is_none());
        let away = self.bindings.values().filter_map(|one| one.away.as_ref());
        let away = away.map(|(since, _)| *since);
        let accepted = self.accepted.values().filter(|one| !one.is_closed);
        let accepted = accepted.filter_map(|one| one.away_since);
        let patience = away
            .chain(accepted)
            .min()
            .map(|since| since + self.patience);
        again.into_iter().chain(patience).min()
    }

    /// A session has begun, by whoever dialled. Links that need it are asked for.
    pub fn begin(
        &mut self,
        id: SessionId,
        session: &mut Session,
        peer: SessionPeer,
        policy: &LinkPolicy<'_>,
    ) -> Vec<Happening> {
        let process = Arc::new(peer.to_process());
        let hints = match peer.dialled {
            true => self.dialling.met(&process),
            false => Vec::new(),
        };
        let known = LinkSession {
            peer,
            process,
            hints,
            is_retiring: false,
            links: BTreeMap::new(),
            closed: Vec::new(),
        };
        // Of two sessions with it one goes, perhaps at its other end: what was found by these hints is found in the other one as well.
        let same = self.sessions.values_mut();
        for other in same.filter(|one| one.process == known.process) {
            let new = known.hints.iter();
            let new: Vec<_> = new.filter(|hint| !has_place(&other.hints, hint)).collect();
            other.hints.extend(new.into_iter().cloned());
        }
        if self.is_lasting() {
            let key = session.resumption_key().clone();
            self.met.begin(id, known.process.clone(), key);
        }
        let surplus = self.surplus(id, &known);
        self.sessions.insert(id, known);
        let mut happened = Vec::new();
        if let Some(surplus) = surplus.filter(|surplus| self.can_retire(*surplus)) {
            if let Some(session) = self.sessions.get_mut(&surplus) {
                session.is_retiring = true;
            }
            happened.push(Happening::Close(surplus));
        }
        happened.append(&mut self.attach(id, session, policy));
        happened
    }

    /// The session that is one too many: of two that we have dialled, as a process can be found at several places, the new one.
    ///
    /// Two processes that dial each other have two sessions. They keep that of the smaller number's dial, and who dialled the other one
    /// closes it. So nobody closes a session whose peer hasn't got the one that stays.
    fn surplus(&self, id: SessionId, new: &LinkSession) -> Option<SessionId> {
        let mut others = self.of_process(&new.process);
        if new.peer.dialled && others.any(|(_, one)| one.peer.dialled && !one.is_retiring) {
            return Some(id);
        }
        if new.process.process >= self.process {
            return None;
        }
        let mut others = self.of_process(&new.process);
        let is_pair =
            |known: &LinkSession| known.peer.dialled != new.peer.dialled && !known.is_retiring;
        let (other, _) = others.find(|(_, known)| is_pair(known))?;
        Some(if new.peer.dialled { id } else { other })
    }

    /// Whether all of a session's links can go over to another one.
    fn can_retire(&self, id: SessionId) -> bool {
        let Some(session) = self.sessions.get(&id) else {
            return false;
        };
        session.links.values().all(|user| match user {
            Use::Own(number) => {
                let binding = self.bindings.get(number);
                binding.is_none_or(|binding| self.is_lasting() && binding.can_move())
            }
            Use::Accepted(number) => {
                let accepted = self.accepted.get(number);
                accepted.is_none_or(|accepted| accepted.lasting.is_some())
            }
            // Whoever asks would lose the answer.
            Use::Lookup => false,
        })
    }

    /// Has all links that can go over to new sessions: gives the sessions that they leave, which the caller closes
    /// ([`CloseReason::Finished`]). The others go on as they are.
    pub fn begin_anew(&mut self) -> Vec<SessionId> {
        let sessions = self.sessions.iter().filter(|(_, one)| !one.is_retiring);
        let ids = sessions.map(|(id, _)| *id);
        let retiring: Vec<_> = ids.filter(|id| self.can_retire(*id)).collect();
        for id in &retiring {
            if let Some(session) = self.sessions.get_mut(id) {
                session.is_retiring = true;
            }
        }
        retiring
    }

    fn of_process<'a>(
        &'a self,
        peer: &'a PeerProcess,
    ) -> impl Iterator<Item = (SessionId, &'a LinkSession)> {
        let sessions = self.sessions.iter();
        let of_process = sessions.filter(move |(_, session)| *session.process == *peer);
        of_process.map(|(id, session)| (*id, session))
    }

    /// The session to a process, if there is one.
    #[must_use]
    pub fn session_to(&self, peer: &WantedProcess) -> Option<SessionId> {
        let mut sessions = self.sessions.iter();
        let fits = |session: &LinkSession| peer.is(&session.process) && !session.is_retiring;
        Some(*sessions.find(|(_, session)| fits(session))?.0)
    }

    /// Asks for the links of all bindings that need one and whose process is this session's.
    pub fn attach(
        &mut self,
        id: SessionId,
        session: &mut Session,
        policy: &LinkPolicy<'_>,
    ) -> Vec<Happening> {
        let is_lasting = self.is_lasting();
        let Some(known) = self.sessions.get_mut(&id).filter(|one| !one.is_retiring) else {
            return Vec::new();
        };
        if session.is_ending() {
            return Vec::new();
        }
        let (mut happened, mut replaced) = (Vec::new(), Vec::new());
        for (number, binding) in &mut self.bindings {
            let outdated = binding.outdated_link(id);
            let is_wanted = binding.is_wanted() && binding.leads_to(&known.process, &known.hints);
            if outdated.is_none() && !is_wanted {
                continue;
            }
            let minimum = policy(binding.startpoint.endpoint());
            let name = is_lasting.then(|| {
                self.names_made += 1;
                self.names_made
            });
            // Who was dialled knows by the first record that who dialled has the session, and so whose key it is.
            let is_shared = known.peer.dialled || session.counts().records_opened > 0;
            let same_host = known.peer.same_host;
            match binding.ask(id, session, same_host, is_shared, minimum, name) {
                Ok((link, mut lost)) => {
                    happened.append(&mut lost);
                    if let Some(outdated) = outdated {
                        // After the question for the link that replaces it: the other end keeps what it has of it.
                        known.links.remove(&outdated);
                        // The other end may have ended it by itself.
                        let _ = session.close_link(outdated);
                    }
                    if let Some(Use::Own(old)) = known.links.insert(link, Use::Own(*number)) {
                        replaced.push((old, link));
                    }
                }
                Err(error) => happened.append(&mut binding.fail(&error.into())),
            }
        }
        for (number, link) in replaced {
            // The number is free again as the other end has confirmed the end of that link: nobody has read it yet.
            let binding = self.bindings.get(&number);
            if binding.is_some_and(|one| one.is_leaving() && one.place == Some((id, link))) {
                happened.extend(self.drop_binding(number));
            }
        }
        happened.append(&mut self.drop_left());
        happened
    }

    /// What was wanted could not be reached. What waits is lost, with what every attempt came to, unless it has a hint that was not tried;
    /// a link that has lost its session waits on, unless the process is gone.
    pub fn unreachable(
        &mut self,
        want: &Want,
        attempts: &FailedAttempts,
        now: Duration,
    ) -> Vec<Happening> {
        let (peer, is_gone) = (&want.peer, attempts.is_gone);
        self.dialling.end(peer);
        let told = attempts.told();
        let mut is_news = self.dialling.failed(peer, &told, now);
        let is_met = self.session_to(peer).is_some();
        let node = peer.node.clone();
        let error = |ended: Option<EndedProcess>, was_open| match told.is_empty() {
            true => LinkError::NoAddress(node.clone()),
            false => LinkError::Unreachable {
                node: node.clone(),
                attempts: told.clone(),
                hindrance: attempts.hindrance,
                ended,
                was_open,
            },
        };
        let (mut happened, is_last) = (Vec::new(), self.is_leaving);
        let bindings = self.bindings.values_mut();
        let bindings = bindings
            .filter(|one| one.place.is_none() && one.peer == *peer)
            .filter(|one| !is_met || one.is_by_hints)
            .filter(|one| is_gone || one.away.is_none() || is_last && one.is_leaving())
            .filter(|one| is_gone || one.has_been_tried_at(&want.hints));
        for binding in bindings {
            let was_open = binding.away.is_some();
            let error = error(is_gone.then_some(binding.means), was_open);
            let is_same = binding.failure.as_ref() == Some(&error.to_string());
            is_news |= !is_same && !binding.is_lookup();
            happened.append(&mut binding.fail(&error));
        }
        if is_news {
            happened.push(Happening::Audit(error(None, false).to_string()));
        }
        if let (true, Some(process)) = (is_gone && !is_met, peer.process) {
            let node = peer.node.clone();
            let gone = PeerProcess { node, process };
            self.dialling.forget(&gone);
            // What has come from a process that has closed its links is handled all the same.
            let over = self
                .accepted_where(|one| *one.peer == gone && one.place.is_none() && !one.is_closed);
            happened.append(&mut self.forget_accepted(over, &error(None, true)));
        }
        happened.append(&mut self.drop_left());
        happened
    }

    /// The program ends, and has closed all bindings: whoever links have lost is dialled at once, for the last time.
    pub fn hurry(&mut self, now: Duration) {
        self.is_leaving = true;
        self.dialling.hurry(now);
    }

    /// A session is over. Its links wait for the next one, if they can and there can be one.
    pub fn end(&mut self, id: SessionId, ended: &Ended, now: Duration) -> Vec<Happening> {
        let Some(known) = self.sessions.remove(&id) else {
            return Vec::new();
        };
        let why = ended.to_string();
        let error = LinkError::SessionEnded {
            node: known.process.node.clone(),
            why: why.clone(),
        };
        let (is_barred, is_leaving) = match ended {
            Ended::Closed(CloseReason::NotAllowed(_)) => (true, true),
            Ended::Closed(CloseReason::ShuttingDown) => (false, true),
            _ => (false, false),
        };
        self.ended.session_ended(id, is_leaving, now);
        self.met.end(id, is_leaving, now);
        let (mut happened, mut over, mut is_away) = (Vec::new(), Vec::new(), false);
        let mut hints = known.hints;
        for number in known.closed {
            if let Some(accepted) = self.accepted.get_mut(&number) {
                accepted.away_since = Some(now);
            }
        }
        for user in known.links.into_values() {
            match user {
                Use::Own(number) => {
                    let Some(binding) = self.bindings.get_mut(&number) else {
                        continue;
                    };
                    if self.patience.is_zero() || is_leaving || !binding.can_move() {
                        happened.append(&mut binding.fail(&error));
                        continue;
                    }
                    binding.leave(now, &why);
                    if binding.is_left() {
                        continue;
                    }
                    is_away = true;
                    if hints.is_empty() {
                        hints = binding.startpoint.hints().to_vec();
                    }
                }
                Use::Accepted(number) => {
                    let accepted = self.accepted.get_mut(&number);
                    match accepted.filter(|one| !is_barred && one.lasting.is_some()) {
                        // What has come is handled, also when the peer has ended in good order. Then it resumes nothing.
                        Some(_) if is_leaving => {
                            if self.close_accepted(number)
                                && let Some(accepted) = self.accepted.get_mut(&number)
                            {
                                accepted.away_since = Some(now);
                            }
                            happened.push(Happening::LinkClosed(number, error.clone()));
                        }
                        Some(accepted) => {
                            accepted.place = None;
                            accepted.away_since = Some(now);
                            is_away = true;
                        }
                        None => over.push(number),
                    }
                }
                // Whoever has asked asks again.
                Use::Lookup => {}
            }
        }
        if is_away {
            let node = &known.process.node;
            let line = format!("lost the way to {node}, and keeps its links: {why}");
            happened.push(Happening::Audit(line));
            self.dialling.lost(&known.process, hints, now);
        }
        happened.append(&mut self.forget_accepted(over, &error));
        happened.append(&mut self.bound_memory());
        happened.append(&mut self.drop_left());
        happened
    }

    /// Time passes: links that have waited for a session for too long are lost, and those that are more than can be kept.
    pub fn give_up(&mut self, now: Duration) -> Vec<Happening> {
        let (patience, mut happened) = (self.patience, Vec::new());
        let is_over = |since: Duration| since + patience <= now;
        self.ended.forget(is_over);
        self.met.forget(is_over);
        for binding in self.bindings.values_mut() {
            let Some((_, why)) = binding.away.take_if(|(since, _)| is_over(*since)) else {
                continue;
            };
            let error = LinkError::Away {
                node: binding.peer.node.clone(),
                patience,
                why,
                attempts: self.dialling.attempts(&binding.peer).to_vec(),
            };
            happened.append(&mut binding.fail(&error));
        }
        happened.append(&mut self.drop_left());
        let over = self.accepted_where(|one| !one.is_closed && one.away_since.is_some_and(is_over));
        let error = LinkError::LinkEnded(format!(
            "its session was lost, and no other one came within {patience:?}"
        ));
        // What has come by them is handled: whoever has posted may know that it has come.
        happened.extend(over.into_iter().map(|number| {
            let error = error.clone();
            match self.close_accepted(number) {
                true => Happening::LinkClosed(number, error),
                false => Happening::LinkOver(number, error),
            }
        }));
        happened.append(&mut self.bound_memory());
        let bindings = &self.bindings;
        let accepted = self.accepted.values();
        let kept = accepted.filter(|one| one.place.is_none() && !one.is_closed);
        // There may be thousands of them.
        let kept: BTreeSet<&PeerProcess> = kept.map(|one| &*one.peer).collect();
        self.dialling.retain(now, |peer| {
            let mut away = bindings.values().filter(|one| one.away.is_some());
            away.any(|one| one.peer.is(peer)) || kept.contains(peer)
        });
        happened
    }

    /// Links of others that no session carries, and their weights.
    fn kept_away(&self) -> impl Iterator<Item = (AcceptedId, &AcceptedLink, u64)> {
        let away = self.accepted.iter();
        let away = away.filter(|(_, one)| one.place.is_none() && one.away_since.is_some());
        away.map(|(number, one)| (*number, one, one.weight()))
    }

    /// Whether more is kept of links of others that no session carries than may be: [`give_up`](Self::give_up) is due.
    #[must_use]
    pub fn keeps_too_much(&self) -> bool {
        let (mut count, mut bytes) = (0, 0_u64);
        for (_, _, weight) in self.kept_away() {
            count += 1;
            bytes = bytes.saturating_add(weight);
        }
        count > AWAY_LINKS_MAX || bytes > AWAY_BYTES_MAX
    }

    /// Keeps the links of others that no session carries within their limits. Those of the node that has most go first, whatever process
    /// numbers it states, and of these the ones that are away for longest: nobody pushes out what others have.
    fn bound_memory(&mut self) -> Vec<Happening> {
        let mut nodes: BTreeMap<&Identity, AwayLinks> = BTreeMap::new();
        let (mut count, mut bytes) = (0, 0_u64);
        for (number, one, weight) in self.kept_away() {
            let of_node = nodes.entry(&one.peer.node).or_default();
            of_node.links.push((one.away_since, number, weight));
            of_node.bytes += weight;
            count += 1;
            bytes += weight;
        }
        let mut over = Vec::new();
        if count > AWAY_LINKS_MAX || bytes > AWAY_BYTES_MAX {
            // The oldest last, as they are taken from there.
            for of_node in nodes.values_mut() {
                of_node.links.sort_unstable_by(|one, other| other.cmp(one));
            }
        }
        while count > AWAY_LINKS_MAX || bytes > AWAY_BYTES_MAX {
            let is_many = count > AWAY_LINKS_MAX;
            let most = nodes.values_mut().max_by_key(|of_node| match is_many {
                true => of_node.links.len() as u64,
                false => of_node.bytes,
            });
            let Some((of_node, (_, number, weight))) =
                most.and_then(|of_node| of_node.links.pop().map(|link| (of_node, link)))
            else {
                break;
            };
            of_node.bytes -= weight;
            count -= 1;
            bytes -= weight;
            over.push(number);
        }
        let why = "more links than can be kept wait for another session";
        self.forget_accepted(over, &LinkError::LinkEnded(why.to_owned()))
    }

    /// The opener of a link has closed it. Says whether calls of it are still to be handled.
    pub(super) fn close_accepted(&mut self, number: AcceptedId) -> bool {
        let Some(accepted) = self.accepted.get_mut(&number) else {
            return false;
        };
        (accepted.place, accepted.is_closed) = (None, true);
        if let Some(lasting) = accepted.lasting.take() {
            self.names.remove(&(accepted.peer.clone(), lasting.name));
        }
        let is_handled = accepted.held == 0;
        if is_handled {
            self.accepted.remove(&number);
        }
        !is_handled
    }

    /// The opener of a link has closed it, and calls of it are still to be handled.
    ///
    /// # Errors
    /// [`SessionError::PeerLimit`] when there are too many such links: their numbers are free, so that the session doesn't bound them.
    pub(super) fn note_closed(
        &mut self,
        id: SessionId,
        number: AcceptedId,
    ) -> Result<(), SessionError> {
        let Some(known) = self.sessions.get_mut(&id) else {
            return Ok(());
        };
        known.closed.push(number);
        if known.closed.len() > AWAY_LINKS_MAX {
            let accepted = &self.accepted;
            known.closed.retain(|number| accepted.contains_key(number));
        }
        if known.closed.len() > AWAY_LINKS_MAX {
            return Err(SessionError::PeerLimit {
                limit: "links that are closed before their calls are handled",
                got: known.closed.len() as u64,
                maximum: AWAY_LINKS_MAX as u64,
            });
        }
        Ok(())
    }

    /// Links that are over for this reason: what has come by them and isn't handled yet is dropped.
    fn forget_accepted(&mut self, numbers: Vec<AcceptedId>, error: &LinkError) -> Vec<Happening> {
        let over = |number| {
            self.drop_accepted(number);
            Happening::LinkOver(number, error.clone())
        };
        numbers.into_iter().map(over).collect()
    }

    pub(super) fn drop_accepted(&mut self, number: AcceptedId) {
        if let Some(accepted) = self.accepted.remove(&number)
            && let Some(lasting) = accepted.lasting
        {
            self.names.remove(&(accepted.peer, lasting.name));
        }
    }

    /// Somebody wants to open a link to one of our endpoints.
    pub(super) fn asked(
        &mut self,
        id: SessionId,
        session: &mut Session,
        asked: AskedLink<'_>,
        policy: &LinkPolicy<'_>,
        now_unix: u64,
        now: Duration,
    ) -> Result<Vec<Happening>, SessionError> {
        let Some(known) = self.sessions.get(&id) else {
            return Ok(Vec::new());
        };
        let (name, link) = (asked.endpoint, asked.link);
        let own = self.endpoints.get(name);
        let policy_asked = policy(name);
        let presented = Presentation {
            binding: session.binding(),
            link: link.number(),
            holder: &known.peer.identity,
            now_unix,
            protection: asked.protection,
            minimum: own.map_or(Protection::Plain, |own| own.minimum.max(policy_asked)),
            same_host: known.peer.same_host,
        };
        let rules = self.policy.authorization();
        let judged = judge(own, asked.right, &presented, rules).and_then(|allowed| {
            let peer = known.process.clone();
            let resumed = match asked.life {
                LinkLife::OneSession => Resumed::Nothing(None),
                LinkLife::Lasting { .. } if self.patience.is_zero() => Resumed::Nothing(None),
                LinkLife::Lasting { name } => {
                    let is_first = self.met.is_first(id, name);
                    if !is_first || self.names.contains_key(&(peer.clone(), name)) {
                        return Err(not_allowed("it has a link of this name, or has had one"));
                    }
                    let key = session.resumption_key().clone();
                    Resumed::Nothing(Some(LastingEnd::new(name, key)))
                }
                LinkLife::Resumed { name, attempt, received, proof } => {
                    let resumed = self.names.get(&(peer.clone(), name)).copied();
                    let kept = resumed.and_then(|number| self.accepted.get_mut(&number));
                    let who = &known.peer.identity;
                    let barred = kept.as_ref().and_then(|kept| kept.is_barred(rules, who));
                    let binding = session.binding();
                    let proves = |key: &ResumptionKey| {
                        key.proves(binding, link.number(), name, attempt, received, &proof)
                    };
                    let right = (asked.endpoint, allowed.number, allowed.by_rule);
                    let Some(AcceptedLink { lasting: Some(lasting), endpoint, number, by_rule, caveats, .. }) = kept else {
                        let ended = self.ended.resume(id, &peer, (name, attempt), right, proves);
                        if let Some(received) = ended {
                            return Ok((peer, allowed, Resumed::Ended { received }));
                        }
                        let anew = match received {
                            0 => self.met.open_anew(id, &peer, name, proves),
                            _ => None,
                        };
                        let text = "the link that it resumes isn't kept here any more";
                        let key = anew.ok_or_else(|| LinkRefusal::Ended(text.into()))?;
                        let mut lasting = LastingEnd::new(name, key);
                        lasting.attempt = attempt;
                        return Ok((peer, allowed, Resumed::Nothing(Some(lasting))));
                    };
                    if !proves(&lasting.key) {
                        return Err(not_allowed("it doesn't prove that the link which it resumes is its own"));
                    }
                    let is_same = *caveats == allowed.caveats;
                    if !is_same || (endpoint.as_str(), *number, *by_rule) != right {
                        return Err(not_allowed("the link that it resumes was opened by another right"));
                    }
                    // What a renewed certificate says of its owner may be less than before.
                    if let Some(decision) = barred {
                        return Err(not_allowed(&decision.reason));
                    }
                    // Sessions don't wait for each other: what was asked for earlier may come later.
                    if attempt <= lasting.attempt {
                        return Err(LinkRefusal::Ended("it has been resumed since".into()));
                    }
                    if let Err(impossible) = lasting.resume(received, 0) {
                        return Err(LinkRefusal::Ended(
                            format!(
                                "got {} as the number of messages that it has received, expected {} to {}",
                                impossible.got, impossible.least, impossible.most
                            )
                            .into(),
                        ));
                    }
                    lasting.attempt = attempt;
                    resumed.map_or(Resumed::Nothing(None), Resumed::Kept)
                }
            };
            Ok((peer, allowed, resumed))
        });
        let who = known.peer.identity.identity().to_string();
        let (peer, allowed, resumed) = match judged {
            Ok(judged) => judged,
            Err(refusal) => {
                let line = format!(
                    "refused {} to {who}: {refusal}",
                    exoskel_identity::PeerText::new(name)
                );
                session.refuse_link(link, refusal)?;
                return Ok(vec![Happening::Audit(line)]);
            }
        };
        let (protection, needs, number) = (allowed.protection, allowed.needs, allowed.number);
        let is_resumed = matches!(resumed, Resumed::Kept(_));
        let (accepted_id, line) = match resumed {
            Resumed::Ended { received } => {
                // Its opener has closed it, and hears that all of it has come: nothing goes by it any more.
                self.dialling.found(&peer);
                let resumption = Resumption {
                    received,
                    withheld: 0,
                };
                session.accept_lasting_link(link, allowed.handlers, protection, resumption)?;
                let line = format!("told {who} that all of its closed link to {name} has come");
                return Ok(vec![Happening::Audit(line)]);
            }
            Resumed::Kept(number) => (number, format!("resumed {name} for {who}: {protection}")),
            Resumed::Nothing(lasting) => {
                let line = format!("opened {name} to {who}: {protection}, startpoint {number}");
                self.accepted_made += 1;
                let number = AcceptedId(self.accepted_made);
                if let Some(lasting) = &lasting {
                    self.names.insert((peer.clone(), lasting.name), number);
                }
                let accepted = AcceptedLink {
                    endpoint: name.to_owned(),
                    handlers: Vec::new(),
                    early: Vec::new(),
                    number: allowed.number,
                    by_rule: allowed.by_rule,
                    caveats: allowed.caveats,
                    expires: allowed.expires,
                    protection,
                    needs,
                    policy_asked,
                    since: now,
                    peer,
                    identity: known.peer.identity.clone(),
                    place: None,
                    lasting,
                    away_since: None,
                    is_closed: false,
                    held: 0,
                    held_calls: 0,
                };
                self.accepted.insert(number, accepted);
                (number, line)
            }
        };
        let Some(accepted) = self.accepted.get_mut(&accepted_id) else {
            return Ok(Vec::new());
        };
        let before = accepted.place.replace((id, link));
        accepted.away_since = None;
        accepted.early = asked.early;
        accepted.learn(allowed.handlers);
        accepted.protection = protection;
        (accepted.needs, accepted.policy_asked) = (needs, policy_asked);
        accepted.identity = known.peer.identity.clone();
        // The session that carried it may not have ended here yet.
        if let Some((old, place)) = before
            && let Some(old) = self.sessions.get_mut(&old)
        {
            old.links.remove(&place);
        }
        if let Some(known) = self.sessions.get_mut(&id) {
            known.links.insert(link, Use::Accepted(accepted_id));
            self.dialling.found(&known.process);
        }
        // Whatever comes of it, the link is this session's now.
        let handlers = accepted.handlers.clone();
        let mut happened = vec![Happening::Audit(line)];
        match &accepted.lasting {
            None => session.accept_link(link, handlers, protection)?,
            Some(lasting) => {
                let resumption = Resumption {
                    received: lasting.received,
                    withheld: if is_resumed { accepted.held } else { 0 },
                };
                session.accept_lasting_link(link, handlers, protection, resumption)?;
                if let Err(error) = send_all(session, link, lasting) {
                    // What the peer took in the session before is too much for it now.
                    let reason = LinkRefusal::Ended(error.to_string().into());
                    session.end_link(link, reason)?;
                    self.end_link(accepted_id);
                    let over = LinkError::LinkEnded(error.to_string());
                    happened.push(Happening::LinkOver(accepted_id, over));
                }
            }
        }
        Ok(happened)
    }

    /// Where the credit of a call goes back that has been handled; nothing if no session carries its link.
    pub fn handled(&mut self, call: &super::LinkCall) -> Option<(SessionId, LinkId)> {
        let accepted = self.accepted.get_mut(&call.accepted)?;
        accepted.held = accepted.held.saturating_sub(call.size);
        accepted.held_calls = accepted.held_calls.saturating_sub(1);
        let place = accepted.place;
        if accepted.is_closed && accepted.held == 0 {
            self.accepted.remove(&call.accepted);
        }
        place
    }

    /// A message that was to be sent there has been found too large: it won't be.
    pub fn take_back(&mut self, id: SessionId, link: LinkId) {
        match self.user(id, link) {
            Some(Use::Own(number)) => {
                if let Some(binding) = self.bindings.get_mut(&number) {
                    binding.take_back();
                }
            }
            Some(Use::Accepted(number)) => {
                let accepted = self.accepted.get_mut(&number);
                if let Some(lasting) = accepted.and_then(|one| one.lasting.as_mut()) {
                    lasting.take_back();
                }
            }
            Some(Use::Lookup) | None => {}
        }
    }

    /// Whether a message that a session doesn't take because it ends goes over the next one.
    #[must_use]
    pub fn outlives(&self, id: SessionId, link: LinkId) -> bool {
        match self.user(id, link) {
            Some(Use::Own(number)) => {
                let binding = self.bindings.get(&number);
                binding.is_some_and(|one| one.lasting.is_some())
            }
            Some(Use::Accepted(number)) => {
                let accepted = self.accepted.get(&number);
                accepted.is_some_and(|one| one.lasting.is_some())
            }
            Some(Use::Lookup) | None => false,
        }
    }

    /// Credit has come back: what it stands for has arrived.
    pub(super) fn credited(&mut self, id: SessionId, session: &Session, link: LinkId) {
        let credited = session.credited(link);
        let lasting = match self.user(id, link) {
            Some(Use::Own(number)) => self
                .bindings
                .get_mut(&number)
                .and_then(|one| one.lasting.as_mut()),
            Some(Use::Accepted(number)) => self
                .accepted
                .get_mut(&number)
                .and_then(|one| one.lasting.as_mut()),
            Some(Use::Lookup) | None => None,
        };
        if let Some(lasting) = lasting {
            lasting.credited(credited);
        }
    }

    fn user(&self, id: SessionId, link: LinkId) -> Option<Use> {
        self.sessions.get(&id)?.links.get(&link).copied()
    }

    pub(super) fn is_lasting(&self) -> bool {
        !self.patience.is_zero()
    }
}

fn not_allowed(text: &str) -> LinkRefusal {
    LinkRefusal::NotAllowed(text.into())
}
