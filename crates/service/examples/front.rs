//! A front for any HTTP server, as `exoskel front` runs it.
//!
//! ```sh
//! cargo run --release -p exoskel-service --example front -- front.toml
//! ```

use std::error::Error;
use std::path::Path;

use exoskel_service::{Configuration, Front, run};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args()
        .nth(1)
        .ok_or("expected the path of a configuration file")?;
    let configuration = Configuration::read(Path::new(&file))?;
    let front = Front::new(configuration.front()?);
    run(&configuration, front, |_| {}).await?;
    Ok(())
}
