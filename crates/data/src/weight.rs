//! What values cost in memory once they are Python objects: upper bounds for CPython 3.11 to 3.14 on machines of 64 bits, the
//! allocator's rounding and the collector's heads included.

/// A reference to a value from what holds it.
pub const REFERENCE: u64 = 8;
/// A float, or an integer of 64 bits.
pub const NUMBER: u64 = 32;
/// Two floats.
pub const COMPLEX: u64 = 32;
/// A date, time, duration, offset, range, slice or decimal number.
pub const SMALL: u64 = 128;
/// An instance of a class written in Python, with its attributes.
pub const INSTANCE: u64 = 512;
/// A NumPy array without its elements, with the owner of its memory.
pub const ARRAY: u64 = 512;
/// A NumPy scalar without its element; records keep an array alive.
pub const SCALAR: u64 = 640;
/// A field of an array's records: its name, its place and its type.
pub const FIELD: u64 = 384;
/// Bytes without their contents.
const BYTES: u64 = 48;
/// Text without its characters.
const TEXT: u64 = 72;

/// An integer of so many bytes: digits of 30 bits in 32.
#[must_use]
pub const fn integer(bytes: u64) -> u64 {
    NUMBER + bytes + bytes / 8
}

/// Bytes: one object with its contents.
#[must_use]
pub const fn bytes(length: u64) -> u64 {
    BYTES + length
}

/// Bytes that can change: an object and its buffer.
#[must_use]
pub const fn byte_array(length: u64) -> u64 {
    80 + length
}

/// Text: 1, 2 or 4 bytes a character, by the highest one.
#[must_use]
pub fn text(text: &str) -> u64 {
    // The highest character decides how wide all are.
    let (mut count, mut widest) = (0_u64, '\0');
    for character in text.chars() {
        count += 1;
        widest = widest.max(character);
    }
    let width = match widest {
        '\0'..='\u{ff}' => 1,
        '\u{100}'..='\u{ffff}' => 2,
        _ => 4,
    };
    text_of(count, width)
}

/// Text of so many characters of one width.
#[must_use]
pub const fn text_of(characters: u64, width: u64) -> u64 {
    TEXT + characters * width
}

/// A list, without what it holds.
#[must_use]
pub const fn list(count: u64) -> u64 {
    count.saturating_mul(REFERENCE).saturating_add(72)
}

/// A tuple, without what it holds.
#[must_use]
pub const fn tuple(count: u64) -> u64 {
    if count == 0 {
        0
    } else {
        count.saturating_mul(REFERENCE).saturating_add(56)
    }
}

/// A dict, without keys and values: right after it has grown, a third of its places are in use.
#[must_use]
pub const fn map(count: u64) -> u64 {
    if count == 0 {
        80
    } else if count <= 5 {
        248
    } else {
        count.saturating_mul(64).saturating_add(280)
    }
}

/// A dict that keeps its order in a list beside.
#[must_use]
pub const fn ordered_map(count: u64) -> u64 {
    if count == 0 {
        return 200;
    }
    count.saturating_mul(160).saturating_add(400)
}

/// A set, without its members: right after it has grown, an eighth of its places is in use.
#[must_use]
pub const fn set(count: u64) -> u64 {
    if count <= 4 {
        232
    } else {
        count.saturating_mul(128).saturating_add(232)
    }
}

/// A deque, without its items.
#[must_use]
pub const fn deque(count: u64) -> u64 {
    // The first block of 64 is there from the start.
    count.saturating_mul(9).saturating_add(800)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_as_wide_as_its_highest_character() {
        assert_eq!(text("abc"), TEXT + 3);
        assert_eq!(text("größe"), TEXT + 5);
        assert_eq!(text("日本"), TEXT + 4);
        assert_eq!(text("a😀"), TEXT + 8);
    }
}
