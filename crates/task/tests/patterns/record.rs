//! Values as records.

use bytes::Bytes;
use exoskel_meaning::meaning::{Data, Value};

/// The body of a value's record without bulk parts.
pub(crate) fn body(value: &Value) -> Bytes {
    let mut body = vec![u8::from(value.touched)];
    value.data.write(&mut body);
    body.into()
}

/// The body of a value's record, and its bulk parts: some have none, some one, some two.
pub(crate) fn write(value: &Value) -> (Vec<u8>, Vec<Bytes>) {
    let mut body = Vec::from(body(value));
    let mut bulk = Vec::new();
    for _ in 0..value.data.sum() % 3 {
        let at = 1 + body[1..].len() / 2;
        bulk.insert(0, Bytes::from(body.split_off(at)));
    }
    (body, bulk)
}

pub(crate) fn read(body: &[u8], bulk: &[Vec<u8>]) -> Value {
    let bytes = [body, &bulk.concat()].concat();
    let mut rest = &bytes[1..];
    let data = Data::read(&mut rest).unwrap();
    assert!(rest.is_empty());
    Value {
        data,
        touched: bytes[0] != 0,
    }
}
