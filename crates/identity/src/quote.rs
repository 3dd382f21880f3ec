//! Foreign text in error messages: short, on one line, without control characters.

use std::fmt;

use crate::limits::QUOTED_CHARACTERS_MAX;

/// A text that came from elsewhere, made safe to show to people: control characters are escaped, so that it can't
/// forge lines of a log or drive a terminal, and it is cut at [`QUOTED_CHARACTERS_MAX`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quoted(String);

impl Quoted {
    /// Takes the text in.
    pub fn new(text: &str) -> Self {
        let mut shown: String = text
            .chars()
            .take(QUOTED_CHARACTERS_MAX)
            .flat_map(shown)
            .collect();
        if text.chars().nth(QUOTED_CHARACTERS_MAX).is_some() {
            shown.push('…');
        }
        Self(shown)
    }

    /// The text as it is shown, without the quotation marks.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Quoted {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "\"{}\"", self.0)
    }
}

fn shown(character: char) -> impl Iterator<Item = char> {
    // Letters and plain ASCII pass; the rest (controls, direction marks, look-alike spaces) is shown as what it is.
    let plain = character.is_alphanumeric()
        || (character.is_ascii_graphic() && character != '"')
        || character == ' ';
    let escaped = (!plain).then(|| character.escape_default());
    plain
        .then_some(character)
        .into_iter()
        .chain(escaped.into_iter().flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_are_escaped_and_length_is_bounded() {
        assert_eq!(
            Quoted::new("CN=lab1, O=Größe").to_string(),
            "\"CN=lab1, O=Größe\""
        );
        assert_eq!(
            Quoted::new("a\n\u{1b}[2J\"\u{202e}").as_str(),
            "a\\n\\u{1b}[2J\\\"\\u{202e}"
        );
        let long = "x".repeat(1000);
        assert_eq!(
            Quoted::new(&long).as_str().chars().count(),
            QUOTED_CHARACTERS_MAX + 1
        );
        assert_eq!(
            Quoted::new(&long[..QUOTED_CHARACTERS_MAX]).as_str().len(),
            QUOTED_CHARACTERS_MAX
        );
    }
}
