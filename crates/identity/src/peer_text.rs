//! Text of a peer, which people may only ever see escaped.

use std::fmt;

use crate::limits::{QUOTED_CHARACTERS_MAX, SENTENCE_CHARACTERS_MAX};

/// The longest colour sequence of a terminal that [`PeerText::lines`] lets pass, in characters. `ESC [ 38;2;255;255;255 m` has 19.
const COLOUR_CHARACTERS_MAX: usize = 32;

/// Switches colours off again.
const COLOURS_OFF: &str = "\u{1b}[0m";

/// A text that came from a peer, or from anywhere else that isn't trusted.
///
/// Displayed, and in debugging output, it stands in quotation marks, is cut at [`QUOTED_CHARACTERS_MAX`], and everything that
/// could forge a line of a log, drive a terminal or reverse what people read is escaped.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerText(Box<str>);

/// Whether a text of several lines keeps its colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colours {
    /// Sequences that set colours and styles pass: the peer can run code here anyway.
    Kept,
    /// They are escaped like everything else.
    Escaped,
}

impl PeerText {
    /// Takes the text in.
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether it is this text.
    pub fn is(&self, text: &str) -> bool {
        &*self.0 == text
    }

    /// The text as it came: to compare it, to read a number from it, or to send it on. People must not see it.
    pub fn raw_for_comparison(&self) -> &str {
        &self.0
    }

    /// The text escaped and cut, without quotation marks.
    pub fn unquoted(&self) -> String {
        self.escaped(QUOTED_CHARACTERS_MAX).collect()
    }

    /// A sentence or two, quoted and escaped, and cut at [`SENTENCE_CHARACTERS_MAX`]. Quotation marks in it become single ones.
    pub fn sentence(&self) -> String {
        let inner = self
            .escaped(SENTENCE_CHARACTERS_MAX)
            .map(|character| if character == '"' { '\'' } else { character });
        format!("\"{}\"", inner.collect::<String>())
    }

    /// The same without quotation marks around it, for sentences that this side wrote.
    pub fn own_sentence(&self) -> String {
        self.escaped(SENTENCE_CHARACTERS_MAX).collect()
    }

    /// A text of several lines, uncut: ends of lines and tabs stay, and so do all characters that only print; everything else is
    /// escaped. A carriage return before the end of a line belongs to it.
    pub fn lines(&self, colours: Colours) -> String {
        let mut shown = String::with_capacity(self.0.len());
        let mut rest = &*self.0;
        let mut is_coloured = false;
        while let Some(character) = rest.chars().next() {
            let (_, behind) = rest.split_at(character.len_utf8());
            let colour = (colours == Colours::Kept).then(|| colour(rest)).flatten();
            match (character, colour) {
                (_, Some(sequence)) => {
                    shown.push_str(sequence);
                    is_coloured = true;
                    rest = &rest[sequence.len()..];
                    continue;
                }
                ('\n' | '\t', _) => shown.push(character),
                ('\r', _) if behind.starts_with('\n') => {}
                _ if only_prints(character) => shown.push(character),
                _ => shown.extend(character.escape_default()),
            }
            rest = behind;
        }
        if is_coloured {
            // In front of the last line's end: what others print must not get the colour.
            let end = shown.trim_end_matches('\n').len();
            shown.insert_str(end, COLOURS_OFF);
        }
        shown
    }

    /// The first characters, escaped; an ellipsis stands for those that are left out.
    fn escaped(&self, characters_max: usize) -> impl Iterator<Item = char> {
        let cut = self.0.chars().nth(characters_max).map(|_| '…');
        self.0
            .chars()
            .take(characters_max)
            .flat_map(one_line)
            .chain(cut)
    }
}

impl fmt::Display for PeerText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.unquoted().replace('"', "\\\"");
        write!(formatter, "\"{shown}\"")
    }
}

impl fmt::Debug for PeerText {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.sentence())
    }
}

impl From<&str> for PeerText {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for PeerText {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

/// Letters and plain ASCII pass; the rest (controls, direction marks, look-alike spaces) is shown as what it is.
fn one_line(character: char) -> impl Iterator<Item = char> {
    let plain = character.is_alphanumeric() || character.is_ascii_graphic() || character == ' ';
    let escaped = (!plain).then(|| character.escape_default());
    plain
        .then_some(character)
        .into_iter()
        .chain(escaped.into_iter().flatten())
}

/// Whether a character prints, and does nothing else: it is no control, separates no lines, and changes no direction. Joiners are
/// part of the spelling of several languages.
fn only_prints(character: char) -> bool {
    let is_format = matches!(
        character,
        '\u{ad}'
            | '\u{600}'..='\u{605}'
            | '\u{61c}'
            | '\u{6dd}'
            | '\u{70f}'
            | '\u{890}'..='\u{891}'
            | '\u{8e2}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{200e}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !character.is_control() && !is_format
}

/// The sequence at the text's start that sets colours and styles of a terminal (SGR), and nothing else.
fn colour(text: &str) -> Option<&str> {
    let parameters = text.strip_prefix("\u{1b}[")?;
    let end = parameters.find(|part: char| !part.is_ascii_digit() && part != ';' && part != ':')?;
    let length = text.len() - parameters.len() + end + 1;
    (parameters[end..].starts_with('m') && length <= COLOUR_CHARACTERS_MAX).then(|| &text[..length])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What drives a terminal, forges a line, or reverses what people read.
    const WEAPONS: [&str; 16] = [
        "\u{1b}[2J",
        "\u{1b}]0;title\u{7}",
        "\u{9b}2J",
        "\u{9d}",
        "\u{202a}",
        "\u{202e}",
        "\u{2066}",
        "\u{2069}",
        "\u{200f}",
        "\u{61c}",
        "\u{2028}",
        "\u{2029}",
        "\r",
        "\u{8}\u{8}",
        "\0",
        "\u{7f}",
    ];

    fn is_harmless(shown: &str) -> bool {
        shown
            .chars()
            .all(|part| only_prints(part) && part != '\n' && part != '\r')
    }

    #[test]
    fn controls_are_escaped_and_length_is_bounded() {
        assert_eq!(
            PeerText::new("CN=lab1, O=Größe").to_string(),
            "\"CN=lab1, O=Größe\""
        );
        assert_eq!(
            PeerText::new("a\n\u{1b}[2J\"\u{202e}").to_string(),
            "\"a\\n\\u{1b}[2J\\\"\\u{202e}\""
        );
        let long = "x".repeat(2000);
        assert_eq!(
            PeerText::new(&long).unquoted().chars().count(),
            QUOTED_CHARACTERS_MAX + 1
        );
        assert_eq!(
            PeerText::new(&long[..QUOTED_CHARACTERS_MAX])
                .unquoted()
                .len(),
            QUOTED_CHARACTERS_MAX
        );
        assert_eq!(
            PeerText::new(&long).sentence().chars().count(),
            SENTENCE_CHARACTERS_MAX + 3
        );
    }

    #[test]
    fn no_form_lets_a_weapon_through() {
        for weapon in WEAPONS.into_iter().chain(["\n"]) {
            let text = PeerText::new(&format!("before{weapon}after"));
            let forms = [
                text.to_string(),
                format!("{text:?}"),
                format!("{text:#?}"),
                text.unquoted(),
                text.sentence(),
                text.own_sentence(),
            ];
            for shown in forms {
                assert!(is_harmless(&shown), "{shown:?}");
                assert!(shown.contains("before") && shown.contains("after"));
            }
        }
    }

    #[test]
    fn several_lines_keep_their_structure_and_nothing_else() {
        for weapon in WEAPONS {
            for colours in [Colours::Kept, Colours::Escaped] {
                let text = PeerText::new(&format!("one{weapon}\n\ttwo\n"));
                let shown = text.lines(colours);
                assert_eq!(shown.matches('\n').count(), 2, "{shown:?}");
                let lines = shown.replace(['\n', '\t'], "");
                assert!(is_harmless(&lines), "{shown:?}");
            }
        }
        let text = "naïve ≤ 3 │ 🚀 \u{1f468}\u{200d}\u{1f469}\r\nnext";
        let shown = PeerText::new(text).lines(Colours::Escaped);
        assert_eq!(shown, text.replace('\r', ""));
    }

    #[test]
    fn colours_pass_where_they_may_and_end_with_their_text() {
        let text = PeerText::new("\u{1b}[1;31mred\u{1b}[m\n");
        assert_eq!(
            text.lines(Colours::Kept),
            "\u{1b}[1;31mred\u{1b}[m\u{1b}[0m\n"
        );
        assert_eq!(text.lines(Colours::Escaped), "\\u{1b}[1;31mred\\u{1b}[m\n");
        // Other sequences are none, whatever they begin with.
        let long = format!("\u{1b}[{}m", "1;".repeat(COLOUR_CHARACTERS_MAX));
        for other in ["\u{1b}[2J", "\u{1b}[1;", "\u{1b}[>4m", "\u{1b}]0m", &long] {
            let shown = PeerText::new(other).lines(Colours::Kept);
            assert!(!shown.contains('\u{1b}'), "{shown:?}");
        }
    }
}
