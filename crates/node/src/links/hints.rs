//! Hints: addresses as people write them.

/// What may stand before a host and a port, and says nothing.
const TCP: &str = "tcp://";

/// What begins the path of a Unix socket, where capitals count.
const UNIX: &str = "unix:";

/// What stands between a gateway's name and its address.
const AT: char = '@';

/// Whether both hints are spellings of one place. Two names of one host are different places.
#[must_use]
pub fn is_same_place(one: &str, other: &str) -> bool {
    one == other || !one.starts_with(UNIX) && shortest(one) == shortest(other)
}

/// A hint without what may be left out.
fn shortest(hint: &str) -> String {
    let (gateway, place) = match hint.split_once(AT) {
        Some((gateway, place)) => (Some(gateway), place),
        None => (None, hint),
    };
    let place = place.strip_prefix(TCP).unwrap_or(place);
    match gateway {
        // The path of a gateway's socket keeps its capitals.
        Some(gateway) if place.starts_with(UNIX) => format!("{gateway}{AT}{place}"),
        Some(gateway) => format!("{gateway}{AT}{place}").to_lowercase(),
        None => place.to_lowercase(),
    }
}

/// Whether a place is among these hints.
pub(super) fn has_place(hints: &[String], place: &str) -> bool {
    hints.iter().any(|hint| is_same_place(hint, place))
}

#[cfg(test)]
mod tests {
    use super::is_same_place;

    #[test]
    fn spellings_of_one_place_are_the_same() {
        for (one, other) in [
            ("tcp://ocean:7700", "ocean:7700"),
            ("tcp://Ocean:7700", "ocean:7700"),
            ("unix:/run/a", "unix:/run/a"),
            ("gateway:gate@tcp://b:1", "gateway:gate@b:1"),
        ] {
            assert!(is_same_place(one, other), "{one} {other}");
            assert!(is_same_place(other, one), "{other} {one}");
        }
        for (one, other) in [
            ("tcp://ocean:7700", "ocean:7701"),
            ("unix:/run/a", "unix:/run/A"),
            ("gateway:gate@b:1", "gateway:other@b:1"),
            ("gateway:gate@b:1", "b:1"),
            ("gateway:gate@unix:/a", "gateway:gate@unix:/A"),
        ] {
            assert!(!is_same_place(one, other), "{one} {other}");
        }
    }
}
