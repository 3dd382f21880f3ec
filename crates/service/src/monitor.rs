//! Metrics and health at an address of their own, without TLS: for the host or the site's inner network only.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::handle::ServerHandle;
use crate::limits::{DESCRIPTORS_PAUSE, MONITOR_CONNECTIONS_MAX, MONITOR_TIME};

/// The type of the OpenMetrics text format.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

impl ServerHandle {
    /// Serves `/metrics` for Prometheus and `/health` (200, and 503 while the server stops) until the server stops.
    ///
    /// # Errors
    /// None after the listener was made; accepting is tried again.
    pub async fn monitor(&self, listener: TcpListener) -> io::Result<()> {
        let places = Arc::new(Semaphore::new(MONITOR_CONNECTIONS_MAX));
        loop {
            let accepted = tokio::select! {
                biased;
                () = self.stopping() => return Ok(()),
                accepted = listener.accept() => accepted,
            };
            let Ok((socket, _)) = accepted else {
                tokio::time::sleep(DESCRIPTORS_PAUSE).await;
                continue;
            };
            let Ok(place) = places.clone().try_acquire_owned() else {
                continue;
            };
            let handle = self.clone();
            tokio::spawn(async move {
                let service = service_fn(|request| {
                    let response = answer(&handle, &request);
                    async { Ok::<_, Infallible>(response) }
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(MONITOR_TIME)
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(socket), service);
                // Whoever asks for metrics and goes away has nothing to be told.
                let _ = tokio::time::timeout(MONITOR_TIME, connection).await;
                drop(place);
            });
        }
    }
}

fn answer(handle: &ServerHandle, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => {
            if let Some(statistics) = handle.state().admission.statistics() {
                handle.metrics().set_verdicts(statistics);
            }
            let (state, metrics) = (handle.state(), handle.metrics());
            metrics.set_audit_lines_lost(state.audit.lost());
            metrics.set_access_lines_lost(state.access_log.lost());
            metrics.set_revocation_lists(&state.admission.revocation_lists());
            if let Some(end) = state.host_end() {
                metrics.set_host_certificate_end(end);
            }
            (StatusCode::OK, OPEN_METRICS, handle.metrics().text())
        }
        (&Method::GET | &Method::HEAD, "/health") if handle.is_stopping() => (
            StatusCode::SERVICE_UNAVAILABLE,
            "text/plain",
            "stopping\n".to_owned(),
        ),
        (&Method::GET | &Method::HEAD, "/health") => {
            (StatusCode::OK, "text/plain", "ok\n".to_owned())
        }
        _ => (
            StatusCode::NOT_FOUND,
            "text/plain",
            "expected /metrics or /health\n".to_owned(),
        ),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
