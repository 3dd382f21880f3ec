//! Layers for axum and other tower services.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use exoskel_identity::{BadFqan, Fqan, VerifiedIdentity};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::audit::Verdict;
use crate::server::Peer;
use exoskel_trust::Rules;

/// Puts the client's [`VerifiedIdentity`] and [`Peer`] into the extensions of every
/// request of one connection.
#[derive(Clone, Debug)]
pub struct IdentityLayer(Peer);

impl IdentityLayer {
    /// For the requests of this client.
    pub fn new(peer: Peer) -> Self {
        Self(peer)
    }
}

impl<S> Layer<S> for IdentityLayer {
    type Service = Identified<S>;

    fn layer(&self, inner: S) -> Identified<S> {
        Identified {
            inner,
            peer: self.0.clone(),
        }
    }
}

/// A service whose requests carry who asks. See [`IdentityLayer`].
#[derive(Clone, Debug)]
pub struct Identified<S> {
    inner: S,
    peer: Peer,
}

impl<S, B> Service<Request<B>> for Identified<S>
where
    S: Service<Request<B>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> S::Future {
        let extensions = request.extensions_mut();
        extensions.insert(self.peer.identity().clone());
        extensions.insert(self.peer.clone());
        self.inner.call(request)
    }
}

/// Lets only those requests pass whose client has an attribute, belongs to an organisation, or may do something by the
/// site's rules. Others get 403 with the reason. Each decision is written into the audit trail.
///
/// It stands behind [`IdentityLayer`], as everything in an [`Http`](crate::Http) does. Without an identity it lets nobody
/// pass.
#[derive(Clone, Debug)]
pub struct Require(Arc<Requirement>);

#[derive(Debug)]
enum Requirement {
    Fqan(Fqan),
    Vo(String),
    Action { rules: Arc<Rules>, action: String },
}

impl Require {
    /// One of the client's attributes is this one: `/vo/group/Role=production`.
    ///
    /// # Errors
    /// [`BadFqan`] when it is none.
    pub fn fqan(fqan: &str) -> Result<Self, BadFqan> {
        Ok(Self(Arc::new(Requirement::Fqan(fqan.parse()?))))
    }

    /// The client belongs to this virtual organisation.
    pub fn vo(vo: &str) -> Self {
        Self(Arc::new(Requirement::Vo(vo.to_owned())))
    }

    /// The rules allow the client this action.
    pub fn action(rules: Arc<Rules>, action: &str) -> Self {
        Self(Arc::new(Requirement::Action {
            rules,
            action: action.to_owned(),
        }))
    }
}

impl Requirement {
    /// What the audit trail calls it.
    fn action(&self) -> String {
        match self {
            Self::Fqan(fqan) => format!("require {fqan}"),
            Self::Vo(vo) => format!("require organisation {vo}"),
            Self::Action { action, .. } => action.clone(),
        }
    }

    fn decide(&self, who: &VerifiedIdentity) -> (Verdict, String) {
        let verdict = |allowed| {
            if allowed {
                Verdict::Accepted
            } else {
                Verdict::Refused
            }
        };
        match self {
            Self::Fqan(fqan) => (
                verdict(who.fqans().any(|one| one == fqan)),
                format!("the attribute {fqan} is required: ask for it with voms-proxy-init"),
            ),
            Self::Vo(vo) => (
                verdict(who.attributes().iter().any(|one| one.vo() == vo)),
                format!("membership of {vo} is required: show it with voms-proxy-init"),
            ),
            Self::Action { rules, action } => {
                let decision = rules.current().decide(who, action);
                (verdict(decision.allowed), decision.reason)
            }
        }
    }
}

impl<S> Layer<S> for Require {
    type Service = Required<S>;

    fn layer(&self, inner: S) -> Required<S> {
        Required {
            inner,
            requirement: self.0.clone(),
        }
    }
}

/// A service that only some clients reach. See [`Require`].
#[derive(Clone, Debug)]
pub struct Required<S> {
    inner: S,
    requirement: Arc<Requirement>,
}

impl<S, B, A> Service<Request<B>> for Required<S>
where
    S: Service<Request<B>, Response = Response<A>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    A: From<String>,
{
    type Response = Response<A>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<A>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that was found ready is the one that is called.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let requirement = self.requirement.clone();
        let peer = request.extensions().get::<Peer>().cloned();
        Box::pin(async move {
            let Some(peer) = peer else {
                return Ok(forbidden("nobody has proved who asks".to_owned()));
            };
            let (verdict, reason) = requirement.decide(peer.identity());
            peer.record(&requirement.action(), verdict, &reason).await;
            match verdict {
                Verdict::Accepted => inner.call(request).await,
                Verdict::Refused => Ok(forbidden(reason)),
            }
        })
    }
}

fn forbidden<A: From<String>>(mut reason: String) -> Response<A> {
    reason.push('\n');
    let mut response = Response::new(A::from(reason));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response.headers_mut().insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}
