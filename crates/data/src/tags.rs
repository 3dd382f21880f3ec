//! The tags of the format. Three are registered with IANA and mean here what they mean there; the others are ours.

/// A non-negative integer of more than 64 bits: its bytes, big-endian (RFC 8949, section 3.4.3).
pub const BIG_POSITIVE: u64 = 2;
/// -1 minus such an integer.
pub const BIG_NEGATIVE: u64 = 3;
/// A UUID: 16 bytes.
pub const UUID: u64 = 37;
/// A set: an array of its members, none twice.
pub const SET: u64 = 258;

/// A tuple: an array.
pub const TUPLE: u64 = 0xE501;
/// An immutable set: an array of its members, none twice.
pub const FROZEN_SET: u64 = 0xE502;
/// Bytes that may change: bytes, or a [`PART`].
pub const BYTE_ARRAY: u64 = 0xE503;
/// A complex number: an array of two floats, real and imaginary.
pub const COMPLEX: u64 = 0xE504;
/// A range: an array of three integers, start, stop and step.
pub const RANGE: u64 = 0xE505;
/// A slice: an array of three integers or nulls, start, stop and step.
pub const SLICE: u64 = 0xE506;
/// A constant by its number: 0 Ellipsis, 1 `NotImplemented`.
pub const CONSTANT: u64 = 0xE507;
/// Text with lone surrogates: bytes, UTF-8 in which a surrogate has three bytes of its own.
pub const SURROGATE_TEXT: u64 = 0xE508;
/// Bytes that travel beside the record, in its next bulk part: an integer, the part's length.
pub const PART: u64 = 0xE509;
/// A date: an array of year, month and day.
pub const DATE: u64 = 0xE50A;
/// A time of day: an array of hour, minute, second, microsecond, fold, and a [`TIME_ZONE`] or null.
pub const TIME: u64 = 0xE50B;
/// A date and time: an array of year, month, day, hour, minute, second, microsecond, fold, and a [`TIME_ZONE`] or null.
pub const DATE_TIME: u64 = 0xE50C;
/// A duration: an array of days, seconds and microseconds.
pub const DURATION: u64 = 0xE50D;
/// A fixed offset from UTC: an array of seconds, microseconds, and a name or null.
pub const TIME_ZONE: u64 = 0xE50E;
/// A decimal number: text.
pub const DECIMAL: u64 = 0xE50F;
/// A fraction: an array of two integers, numerator and positive denominator.
pub const FRACTION: u64 = 0xE510;
/// A path that isn't looked at: an array of its flavour (0 POSIX, 1 Windows, 2 the reader's own) and text.
pub const PATH: u64 = 0xE511;
/// Counts by key: a map.
pub const COUNTER: u64 = 0xE512;
/// A map whose order matters: a map.
pub const ORDERED_MAP: u64 = 0xE513;
/// A map with a factory for what it lacks: an array of the factory's number or null, and a map. See [`FACTORIES`].
pub const DEFAULT_MAP: u64 = 0xE514;
/// A queue with two ends: an array of its greatest length or null, and an array of its items.
pub const DEQUE: u64 = 0xE515;
/// An array of numbers, dates or text of fixed size: an array of the [elements](crate::elements), the shape, the order
/// (0 the last index varies fastest, 1 the first), and bytes or a [`PART`].
pub const ARRAY: u64 = 0xE516;
/// One such element by itself: an array of the elements and bytes.
pub const SCALAR: u64 = 0xE517;
/// An array of any values: an array of the shape and an array of the values, the last index varying fastest.
pub const OBJECT_ARRAY: u64 = 0xE518;
/// An instance of a class that the program registered: an array of its name and plain data.
pub const REGISTERED: u64 = 0xE519;
/// An instance of a known class of a known library: an array of its name and plain data.
pub const LIBRARY: u64 = 0xE51A;
/// An exception as a value: an array of its class, its text, and null or plain data.
pub const EXCEPTION: u64 = 0xE51B;

/// What may make the missing values of a [`DEFAULT_MAP`], by number.
pub const FACTORIES: [&str; 11] = [
    "int",
    "float",
    "complex",
    "bool",
    "str",
    "bytes",
    "list",
    "tuple",
    "dict",
    "set",
    "frozenset",
];
