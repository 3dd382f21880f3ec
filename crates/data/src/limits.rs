//! The limits of plain data. A value within them can be made, compared, hashed and dropped in time and memory that its size in
//! bytes bounds.

/// Values within values. Making and dropping a value recurses so deep.
pub const NESTING_MAX: u32 = 256;

/// What a value may cost in memory for each byte of its message. The dearest things that honest programs send by the thousand are small
/// sets, dicts, deques and lists: 80 to 130 bytes of memory for each byte.
pub const MEMORY_PER_BYTE_MAX: u64 = 128;

/// What any value may cost, however short its message is.
pub const MEMORY_BYTES_MIN: u64 = 1 << 20;

/// What a value may cost that came compressed, however short its message was, besides what its bulk parts hold. The compressed bytes
/// count for [`MEMORY_PER_BYTE_MAX`] each: kilobytes become many millions of objects otherwise.
pub const EXPANDED_MEMORY_BYTES_MIN: u64 = 64 << 20;

/// Objects of libraries, and the arrays and lists that they are directly made of, in any message. pandas and xarray take up to
/// a tenth of a millisecond for each, however short it is: a second in all.
pub const LIBRARY_PIECES_MIN: u64 = 8192;

/// Bytes of a message for each piece beyond that: less than a second for a million bytes.
pub const LIBRARY_PIECE_BYTES: u64 = 128;

/// Objects of libraries that are single numbers, and count like those.
pub const LIBRARY_NUMBERS: [&str; 2] = ["pandas.Timestamp:1", "pandas.Timedelta:1"];

/// Bytes of an integer. Hashing and comparing it take time in proportion.
pub const INTEGER_BYTES_MAX: u64 = 1 << 20;

/// Bytes of an integer as a key of a map or a member of a set: keys of one hash are compared, also an integer with a decimal
/// number, which takes the square of its length.
pub const KEY_INTEGER_BYTES_MAX: u64 = 64;

/// Digits of a decimal number: what Python itself converts between integers and text without being asked twice.
pub const DECIMAL_DIGITS_MAX: u64 = 4300;

/// The exponent of a decimal number, either way: that of Python's own default context.
pub const DECIMAL_EXPONENT_MAX: u64 = 999_999;

/// Bytes of a fraction's numerator, and of its denominator: finding their common divisor takes the square of that.
pub const FRACTION_BYTES_MAX: u64 = 2048;

/// Bytes of a path: what operating systems take.
pub const PATH_BYTES_MAX: u64 = 4096;

/// Bytes of the name of a class or of a time zone.
pub const NAME_BYTES_MAX: u64 = 256;

/// Dimensions of an array: what every release of NumPy takes.
pub const DIMENSIONS_MAX: u64 = 32;

/// Fields of a record in an array, those of records within it counted as well.
pub const FIELDS_MAX: u32 = 1024;

/// Records within records in an array.
pub const FIELD_NESTING_MAX: u32 = 8;

/// Bytes of an exception's text.
pub const EXCEPTION_TEXT_BYTES_MAX: u64 = 16 * 1024;

/// Lines of a traceback.
pub const TRACEBACK_LINES_MAX: u64 = 1024;

/// Bytes of a traceback, all lines together.
pub const TRACEBACK_BYTES_MAX: u64 = 64 * 1024;
