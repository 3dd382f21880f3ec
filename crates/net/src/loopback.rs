//! The policies of a manager and its own children when they talk over TCP on loopback.

/// For those who ask for plain data.
const PLAIN: &str = r#"
[domain.loopback]
addresses = ["127.0.0.0/8"]
names = ["local-*", "manager"]
results = "pickle"

[[rule]]
from = "loopback"
to = "loopback"
class = "data"
protection = "plain"
"#;

/// The same with everything encrypted.
const ENCRYPTED: &str = r#"
[domain.loopback]
addresses = ["127.0.0.0/8"]
names = ["local-*", "manager"]
results = "pickle"
"#;

/// The policy of both ends, as TOML. Our own children's results need no restrictions.
#[must_use]
pub fn policy(is_plain: bool) -> &'static str {
    if is_plain { PLAIN } else { ENCRYPTED }
}
