//! Layers for axum and other tower services.

use std::task::{Context, Poll};

use http::Request;
use tower_layer::Layer;
use tower_service::Service;

use crate::server::Peer;

/// Puts the client's [`VerifiedIdentity`](exoskel_identity::VerifiedIdentity) and [`Peer`] into the extensions of every
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
