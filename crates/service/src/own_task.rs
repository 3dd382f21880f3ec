//! Work in a task of its own, which ends with whoever waits for it.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Version};
use tokio::task::JoinHandle;
use tower_service::Service;

use crate::body::{BoxError, RequestBody};

/// A service that makes the heads of its answers over HTTP/2 in tasks of their own. What one of them computes does not hold up the others of its
/// connection, and a panic there is that request's alone. Bodies are made in the connection's task.
#[derive(Clone)]
pub(crate) struct OwnTask<S>(pub(crate) S);

impl<S> Service<Request<RequestBody>> for OwnTask<S>
where
    S: Service<Request<RequestBody>>,
    S::Response: Send + 'static,
    S::Error: Into<BoxError> + Send + 'static,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.0.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let has_own_task = request.version() == Version::HTTP_2;
        let answer = self.0.call(request);
        if !has_own_task {
            return Box::pin(async { answer.await.map_err(Into::into) });
        }
        let mut task = AbortOnDrop(tokio::spawn(answer));
        Box::pin(async move { (&mut task.0).await?.map_err(Into::into) })
    }
}

/// A task that is stopped when nobody waits for it any more.
pub(crate) struct AbortOnDrop<T>(pub(crate) JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
