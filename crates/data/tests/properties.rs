//! Whatever the bytes: a value is good or a fault, in time and memory that its size bounds. And what is written is read.

use exoskel_data::limits::{EXPANDED_MEMORY_BYTES_MIN, MEMORY_BYTES_MIN, NESTING_MAX};
use exoskel_data::{Checked, CheckedException, DataItem, Fault, Writer, tags};
use proptest::prelude::*;

/// A value to be written.
#[derive(Clone, Debug)]
enum Value {
    Null,
    Boolean(bool),
    Integer(i64),
    Unsigned(u64),
    Float(f64),
    Text(String),
    Bytes(Vec<u8>),
    Part(Vec<u8>),
    List(Vec<Self>),
    Tuple(Vec<Self>),
    Map(Vec<(String, Self)>),
    Numbers(Vec<i32>),
    Booleans(Vec<bool>),
    Decimal(String),
    Moment([i64; 8]),
}

fn values() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Boolean),
        any::<i64>().prop_map(Value::Integer),
        any::<u64>().prop_map(Value::Unsigned),
        any::<f64>().prop_map(Value::Float),
        ".{0,12}".prop_map(Value::Text),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::Bytes),
        proptest::collection::vec(any::<u8>(), 0..20).prop_map(Value::Part),
        proptest::collection::vec(any::<i32>(), 0..9).prop_map(Value::Numbers),
        proptest::collection::vec(any::<bool>(), 0..9).prop_map(Value::Booleans),
        "-?[0-9]{1,9}(\\.[0-9]{1,9})?(E[+-][0-9]{1,5})?".prop_map(Value::Decimal),
        any::<[i64; 8]>().prop_map(Value::Moment),
    ];
    leaf.prop_recursive(5, 60, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::List),
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::Tuple),
            proptest::collection::vec((".{0,5}", inner), 0..6).prop_map(Value::Map),
        ]
    })
}

fn write(value: &Value, writer: &mut Writer, parts: &mut Vec<Vec<u8>>) {
    match value {
        Value::Null => writer.null(),
        Value::Boolean(value) => writer.boolean(*value),
        Value::Integer(value) => writer.integer(*value),
        Value::Unsigned(value) => writer.unsigned(*value),
        Value::Float(value) => writer.float(*value),
        Value::Text(text) => writer.text(text),
        Value::Bytes(bytes) => writer.bytes(bytes),
        Value::Part(bytes) => {
            writer.tag(tags::PART);
            writer.unsigned(bytes.len() as u64);
            parts.push(bytes.clone());
        }
        Value::List(items) | Value::Tuple(items) => {
            if matches!(value, Value::Tuple(_)) {
                writer.tag(tags::TUPLE);
            }
            writer.array(items.len() as u64);
            items.iter().for_each(|item| write(item, writer, parts));
        }
        Value::Map(pairs) => {
            writer.map(pairs.len() as u64);
            for (key, item) in pairs {
                writer.text(key);
                write(item, writer, parts);
            }
        }
        Value::Numbers(numbers) => {
            let bytes: Vec<u8> = numbers
                .iter()
                .flat_map(|number| number.to_le_bytes())
                .collect();
            write_array(writer, "<i4", numbers.len(), &bytes);
        }
        Value::Booleans(booleans) => {
            let bytes: Vec<u8> = booleans.iter().map(|boolean| u8::from(*boolean)).collect();
            write_array(writer, "|b1", booleans.len(), &bytes);
        }
        Value::Decimal(text) => {
            writer.tag(tags::DECIMAL);
            writer.text(text);
        }
        Value::Moment(fields) => {
            writer.tag(tags::DATE_TIME);
            writer.array(9);
            fields.iter().for_each(|field| writer.integer(*field));
            writer.null();
        }
    }
}

fn write_array(writer: &mut Writer, elements: &str, length: usize, bytes: &[u8]) {
    writer.tag(tags::ARRAY);
    writer.array(4);
    writer.text(elements);
    writer.array(1);
    writer.unsigned(length as u64);
    writer.integer(0);
    writer.bytes(bytes);
}

fn written(value: &Value) -> (Vec<u8>, Vec<Vec<u8>>) {
    let (mut writer, mut parts) = (Writer::default(), Vec::new());
    write(value, &mut writer, &mut parts);
    (writer.as_bytes().to_vec(), parts)
}

fn check(bytes: &[u8]) -> Result<(), Fault> {
    Checked::new::<&[u8]>(bytes, &[]).map(|_| ())
}

proptest! {
    /// What is written is good, and its items are what was written.
    #[test]
    fn written_values_are_good(value in values()) {
        let (bytes, parts) = written(&value);
        let checked = Checked::new(&bytes, &parts);
        prop_assert!(checked.is_ok(), "{checked:?}");
        let first = checked.unwrap().reader().next_item().unwrap();
        match value {
            Value::Integer(value) => prop_assert_eq!(first, DataItem::Integer(value)),
            Value::Unsigned(value) => {
                let expected = i64::try_from(value).map_or(DataItem::Unsigned(value), DataItem::Integer);
                prop_assert_eq!(first, expected);
            }
            Value::Text(text) => prop_assert_eq!(first, DataItem::Text(text.as_bytes())),
            _ => {}
        }
    }

    /// A good value that is cut anywhere, or has a byte or a part too many, is a fault.
    #[test]
    fn cut_values_are_faults(value in values(), cut in any::<prop::sample::Index>()) {
        let (mut bytes, mut parts) = written(&value);
        prop_assert!(Checked::new(&bytes[..cut.index(bytes.len())], &parts).is_err());
        parts.push(vec![0]);
        prop_assert!(Checked::new(&bytes, &parts).is_err());
        parts.pop();
        bytes.push(0xf6);
        prop_assert!(Checked::new(&bytes, &parts).is_err());
    }

    /// Changed bytes and noise never panic.
    #[test]
    fn noise_never_panics(value in values(), changes in proptest::collection::vec(any::<(prop::sample::Index, u8)>(), 1..6)) {
        let (mut bytes, parts) = written(&value);
        for (index, byte) in changes {
            let length = bytes.len();
            bytes[index.index(length)] = byte;
        }
        let _ = Checked::new(&bytes, &parts);
        let _ = CheckedException::new(&bytes);
    }
}

#[test]
fn nesting_ends_at_its_limit() {
    let nested = |levels: usize| [vec![0x81; levels], vec![0xf6]].concat();
    assert_eq!(check(&nested(NESTING_MAX as usize)), Ok(()));
    assert!(matches!(
        check(&nested(NESTING_MAX as usize + 1)),
        Err(Fault::Limit { got: 257, .. })
    ));
    // Tags don't get round it.
    let mut tagged = [0xd9, 0xe5, 0x01, 0x81].repeat(1_000_000);
    tagged.push(0xf6);
    assert!(matches!(check(&tagged), Err(Fault::Limit { .. })));
}

#[test]
fn counts_that_lie_cost_nothing() {
    for head in [
        // Arrays, maps, text and bytes of 2^60; sets, deques, objects.
        &[0x9b, 0x10, 0, 0, 0, 0, 0, 0, 0][..],
        &[0xbb, 0x10, 0, 0, 0, 0, 0, 0, 0],
        &[0x7b, 0x10, 0, 0, 0, 0, 0, 0, 0],
        &[0x5b, 0x10, 0, 0, 0, 0, 0, 0, 0],
        &[0xd9, 0x01, 0x02, 0x9b, 0x10, 0, 0, 0, 0, 0, 0, 0],
        &[
            0xd9, 0xe5, 0x15, 0x82, 0xf6, 0x9b, 0x10, 0, 0, 0, 0, 0, 0, 0,
        ],
        &[
            0xd9, 0xe5, 0x18, 0x82, 0x81, 0x1b, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x9b, 0x10, 0, 0, 0, 0,
            0, 0, 0,
        ],
    ] {
        assert!(check(head).is_err(), "{head:?}");
    }
}

#[test]
fn small_messages_make_no_large_objects() {
    // Empty sets by the million, in four bytes each.
    let sets = |count: u32| {
        let mut bytes = vec![0x9a];
        bytes.extend_from_slice(&count.to_be_bytes());
        bytes.extend([0xd9, 0x01, 0x02, 0x80].repeat(count as usize));
        check(&bytes)
    };
    assert_eq!(sets(100_000), Ok(()));
    // An empty array that a sum would fill, and what is within its message's means.
    let empty = |other: u64| {
        let mut writer = Writer::default();
        writer.tag(tags::ARRAY);
        writer.array(4);
        writer.text("<f8");
        writer.array(2);
        writer.integer(0);
        writer.unsigned(other);
        writer.integer(0);
        writer.bytes(b"");
        check(writer.as_bytes())
    };
    assert_eq!(empty(1000), Ok(()));
    assert!(matches!(empty(MEMORY_BYTES_MIN), Err(Fault::Memory { .. })));
    // Deques of 800 bytes in seven.
    let deques = [0xd9, 0xe5, 0x15, 0x82, 0xf6, 0x80].repeat(100_000);
    let mut bytes = vec![0x9a, 0, 1, 0x86, 0xa0];
    bytes.extend(deques);
    assert!(matches!(check(&bytes), Err(Fault::Memory { .. })));
}

#[test]
fn what_could_hang_is_refused() {
    let decimal = |text: &str| {
        let mut writer = Writer::default();
        writer.tag(tags::DECIMAL);
        writer.text(text);
        check(writer.as_bytes())
    };
    for good in [
        "0",
        "-1.25",
        "1E+5",
        "0E-30",
        "NaN",
        "-sNaN12",
        "Infinity",
        "-Infinity",
        ".5",
        "5.",
    ] {
        assert_eq!(decimal(good), Ok(()), "{good}");
    }
    for bad in [
        "", "-", "1E", "1E+", "1e5", "0x1", "nan", "Inf", "1_000", " 1", "1.2.3", "1E1E1", "١",
    ] {
        assert!(decimal(bad).is_err(), "{bad}");
    }
    assert!(decimal(&"9".repeat(4301)).is_err());
    assert!(decimal("1E+1000000").is_err());
    // An integer as a key, which would be compared with a decimal number.
    let mut writer = Writer::default();
    writer.map(1);
    writer.tag(tags::BIG_POSITIVE);
    writer.bytes(&[1; 65]);
    writer.null();
    assert!(matches!(
        check(writer.as_bytes()),
        Err(Fault::Limit {
            kind: "an integer",
            ..
        })
    ));
}

#[test]
fn containers_are_no_keys() {
    for key in [
        &[0x80][..],
        &[0xa0],
        &[0xd9, 0x01, 0x02, 0x80],
        &[0xd9, 0xe5, 0x01, 0x81, 0x80],
    ] {
        let map = [&[0xa1], key, &[0xf6]].concat();
        assert!(matches!(check(&map), Err(Fault::Key { .. })), "{key:?}");
    }
}

#[test]
fn what_this_format_does_not_have_is_refused() {
    // Lengths that are not told, short floats, undefined, simple values, breaks, other tags, an empty record.
    for bytes in [
        &[0x9f, 0xff][..],
        &[0xbf, 0xff],
        &[0x5f, 0xff],
        &[0x7f, 0xff],
        &[0xf9, 0, 0],
        &[0xfa, 0, 0, 0, 0],
        &[0xf7],
        &[0xe0],
        &[0xf8, 0x20],
        &[0xff],
        &[0xc0, 0x60],
        &[0xd9, 0xe5, 0x00, 0xf6],
        &[0xd9, 0xe5, 0x1c, 0xf6],
        &[0x61, 0xff],
        &[0x63, 0xed, 0xa0, 0x80],
        &[],
        // A pickle.
        b"\x80\x05K\x01.",
        b"K\x01.",
    ] {
        assert!(
            matches!(check(bytes), Err(Fault::Malformed { .. })),
            "{bytes:?}"
        );
    }
}

#[test]
fn bulk_parts_are_used_once_and_in_order() {
    let part = |length: u64| {
        let mut writer = Writer::default();
        writer.tag(tags::PART);
        writer.unsigned(length);
        writer.as_bytes().to_vec()
    };
    let two = [vec![0x82], part(3), part(1)].concat();
    assert!(Checked::new(&two, &[&b"abc"[..], b"d"]).is_ok());
    assert!(Checked::new(&two, &[&b"d"[..], b"abc"]).is_err());
    assert!(Checked::new(&two, &[&b"abc"[..]]).is_err());
    assert!(Checked::new(&part(3), &[&b"abc"[..], b"d"]).is_err());
}

#[test]
fn exceptions_are_text() {
    let exception = |kind: &str, text: &str, lines: &[&str]| {
        let mut writer = Writer::default();
        writer.array(4);
        writer.text(kind);
        writer.text(text);
        writer.array(lines.len() as u64);
        lines.iter().for_each(|line| writer.text(line));
        writer.null();
        writer.as_bytes().to_vec()
    };
    let bytes = exception("ValueError", "no", &["a", "b"]);
    let read = CheckedException::new(&bytes).unwrap();
    assert_eq!((read.kind, read.text), ("ValueError", "no"));
    assert_eq!(read.traceback, ["a", "b"]);
    assert_eq!(read.data.reader().next_item(), Ok(DataItem::Null));
    assert!(CheckedException::new(&exception(&"K".repeat(300), "", &[])).is_err());
    assert!(CheckedException::new(&exception("K", &"x".repeat(20_000), &[])).is_err());
    assert!(CheckedException::new(&exception("K", "", &["x"; 2000])).is_err());
    assert!(CheckedException::new(b"\x80").is_err());
}

/// Aim: NumPy walks over the elements of an array also where they have no bytes. Method: records of an array without elements,
/// with a shape and fields that no bytes stand for.
#[test]
fn elements_without_bytes_are_weighed() {
    let empty_records = |shape: &[u64], field: &[u64]| {
        let mut writer = Writer::default();
        writer.tag(tags::ARRAY);
        writer.array(4);
        writer.array(1);
        writer.array(3);
        writer.text("a");
        writer.text("<f8");
        writer.array(field.len() as u64);
        field.iter().for_each(|length| writer.unsigned(*length));
        writer.array(shape.len() as u64);
        shape.iter().for_each(|length| writer.unsigned(*length));
        writer.integer(0);
        writer.bytes(b"");
        check(writer.as_bytes())
    };
    assert_eq!(empty_records(&[8], &[0]), Ok(()));
    assert_eq!(empty_records(&[0, 8], &[4]), Ok(()));
    for (shape, field) in [
        (&[1 << 40][..], &[0][..]),
        (&[1], &[0, 1 << 24]),
        (&[1 << 20], &[0]),
        (&[0], &[0, 1 << 20]),
    ] {
        let got = empty_records(shape, field);
        assert!(
            matches!(got, Err(Fault::Memory { .. } | Fault::Malformed { .. })),
            "{got:?}"
        );
    }
}

#[test]
fn integers_in_registered_keys_are_short() {
    let registered = |as_key: bool| {
        let mut writer = Writer::default();
        if as_key {
            writer.map(1);
        }
        writer.tag(tags::REGISTERED);
        writer.array(2);
        writer.text("module:Class");
        writer.array(1);
        writer.map(1);
        writer.text("field");
        writer.tag(tags::BIG_POSITIVE);
        writer.bytes(&[1; 65]);
        if as_key {
            writer.null();
        }
        check(writer.as_bytes())
    };
    assert_eq!(registered(false), Ok(()));
    assert!(matches!(registered(true), Err(Fault::Limit { .. })));
}

/// Aim: what came as kilobytes becomes millions of objects. Method: many empty lists beside a large bulk part, weighed as they are and
/// as what they were compressed to; texts and parts weigh what they hold.
#[test]
fn what_came_compressed_is_weighed_against_what_came() {
    let lists = |count: u64| {
        let mut writer = Writer::default();
        writer.array(2);
        writer.tag(tags::PART);
        writer.unsigned(PART_BYTES);
        writer.array(count);
        (0..count).for_each(|_| writer.array(0));
        writer.as_bytes().to_vec()
    };
    const PART_BYTES: u64 = 100_000_000;
    let part = [vec![0; PART_BYTES as usize]];
    let taken = |body: &[u8], bytes| Checked::sent_as(body, &part, bytes).map(|_| ());
    // A list of the list weighs 80 bytes.
    let some = lists(EXPANDED_MEMORY_BYTES_MIN / 80 - 1000);
    let more = lists(EXPANDED_MEMORY_BYTES_MIN / 80 + 1000);
    assert_eq!(taken(&some, Some(2000)), Ok(()));
    assert!(
        matches!(
            taken(&more, Some(200)),
            Err(Fault::Memory { message: 200, .. })
        ),
        "{:?}",
        taken(&more, Some(200))
    );
    assert_eq!(taken(&more, Some(1 << 20)), Ok(()));
    assert_eq!(taken(&more, None), Ok(()));

    // Not more than if it had come as it is, either.
    let mut sets = Writer::default();
    sets.array(100_000);
    (0..100_000).for_each(|_| {
        sets.tag(tags::SET);
        sets.array(1);
        sets.unsigned(1);
    });
    let bytes = sets.as_bytes();
    let as_it_is = Checked::new::<&[u8]>(bytes, &[]).map(|_| ());
    let lying = Checked::sent_as::<&[u8]>(bytes, &[], Some(u64::MAX)).map(|_| ());
    assert_eq!(as_it_is, lying);

    let mut text = Writer::default();
    text.text(&"ö".repeat(8_000_000));
    let compressed = Checked::sent_as::<&[u8]>(text.as_bytes(), &[], Some(2000));
    assert!(compressed.is_ok());

    let mut frames = Writer::default();
    frames.array(20_000);
    (0..20_000).for_each(|_| {
        frames.tag(tags::LIBRARY);
        frames.array(2);
        frames.text(&format!("pandas.DataFrame:{}", "1".repeat(200)));
        frames.null();
    });
    let bytes = frames.as_bytes();
    assert!(Checked::new::<&[u8]>(bytes, &[]).is_ok());
    let compressed = Checked::sent_as::<&[u8]>(bytes, &[], Some(2000));
    assert!(matches!(compressed, Err(Fault::Limit { .. })));
}

/// Aim: libraries take much time for what has few bytes. Method: many empty objects, and one of many columns; single moments
/// in time and the contents of a column don't count.
#[test]
fn pieces_of_libraries_are_counted() {
    let many = |name: &str, count: u64, write: fn(&mut Writer)| {
        let mut writer = Writer::default();
        writer.array(count);
        for _ in 0..count {
            writer.tag(tags::LIBRARY);
            writer.array(2);
            writer.text(name);
            write(&mut writer);
        }
        check(writer.as_bytes())
    };
    assert_eq!(many("pandas.DataFrame:1", 8192, Writer::null), Ok(()));
    let refused = many("pandas.DataFrame:1", 20_000, Writer::null);
    assert!(matches!(refused, Err(Fault::Limit { .. })), "{refused:?}");
    assert_eq!(many("pandas.Timestamp:1", 20_000, Writer::null), Ok(()));
    let columns = |writer: &mut Writer| {
        writer.tag(tags::TUPLE);
        writer.array(20_000);
        (0..20_000).for_each(|_| writer.array(0));
    };
    let refused = many("pandas.DataFrame:1", 1, columns);
    assert!(matches!(refused, Err(Fault::Limit { .. })), "{refused:?}");
    let contents = |writer: &mut Writer| {
        writer.array(20_000);
        (0..20_000).for_each(|_| writer.array(0));
    };
    assert_eq!(many("pandas.DataFrame:1", 1, contents), Ok(()));
}
