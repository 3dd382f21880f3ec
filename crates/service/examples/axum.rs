//! An axum application that knows its clients by their grid identity.
//!
//! ```sh
//! cargo run --release -p exoskel-service --example axum -- service.toml
//! ```

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;

use axum::routing::get;
use axum::{Extension, Router};
use exoskel_identity::VerifiedIdentity;
use exoskel_service::{Configuration, Http, run};

async fn whoami(Extension(identity): Extension<VerifiedIdentity>) -> String {
    let mut body = format!("DN: {}\n", identity.grid_subject().unwrap_or_default());
    if let Some(vo) = identity.vo() {
        let _ = writeln!(body, "VO: {vo}");
    }
    for fqan in identity.fqans() {
        let _ = writeln!(body, "FQAN: {fqan}");
    }
    body
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args()
        .nth(1)
        .ok_or("expected the path of a configuration file")?;
    let configuration = Configuration::read(Path::new(&file))?;
    let application = Router::new().route("/", get(whoami));
    run(&configuration, Http::new(application), |_| {}).await?;
    Ok(())
}
