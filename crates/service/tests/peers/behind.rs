//! An HTTP server for a front to stand before.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;

use super::Scratch;

pub type Body = UnsyncBoxBody<Bytes, hyper::Error>;

pub fn text(text: &str) -> Body {
    Full::new(Bytes::copy_from_slice(text.as_bytes()))
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

/// A server behind the front, which keeps the heads that it got.
pub struct Behind {
    seen: Arc<Mutex<Vec<(String, HeaderMap)>>>,
    task: JoinHandle<()>,
}

impl Behind {
    pub fn start<F, R>(scratch: &Scratch, answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> R + Clone + Send + 'static,
        R: Future<Output = Response<Body>> + Send,
    {
        let listener = UnixListener::bind(scratch.path().join("app.sock")).unwrap();
        let seen: Arc<Mutex<Vec<(String, HeaderMap)>>> = Arc::default();
        let kept = seen.clone();
        let task = tokio::spawn(async move {
            loop {
                let (socket, _) = listener.accept().await.unwrap();
                let (answer, kept) = (answer.clone(), kept.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let head = (request.uri().to_string(), request.headers().clone());
                    kept.lock().unwrap().push(head);
                    let answer = answer.clone();
                    async move { Ok::<_, Infallible>(answer(request).await) }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(socket), service)
                        .with_upgrades(),
                );
            }
        });
        Self { seen, task }
    }

    pub fn heads(&self) -> Vec<(String, HeaderMap)> {
        self.seen.lock().unwrap().clone()
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.task.abort();
    }
}
