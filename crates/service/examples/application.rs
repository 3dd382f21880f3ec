//! An application behind a front: plain HTTP on a Unix socket, it tells each client what the front says of it.
//!
//! ```sh
//! cargo run --release -p exoskel-service --example application -- /run/application.sock
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Write as _;

use http::header::HeaderMap;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;

fn whoami(headers: &HeaderMap) -> String {
    let field = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let mut body = format!("DN: {}\n", field("exoskel-subject").unwrap_or_default());
    if let Some(vo) = field("exoskel-vo") {
        let _ = writeln!(body, "VO: {vo}");
    }
    if let Some(fqans) = field("exoskel-fqan") {
        let _ = writeln!(body, "FQANs: {fqans}");
    }
    body
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("expected the path of a socket to make")?;
    let listener = UnixListener::bind(path)?;
    loop {
        let (stream, _) = listener.accept().await?;
        let service = service_fn(|request: Request<Incoming>| async move {
            Ok::<_, Infallible>(Response::new(whoami(request.headers())))
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}
