//! Messages of the attach protocol, in whatever pieces they come.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::Arc;

use exoskel_transfer::{
    ATTACH_BYTES_MAX, AttachRequest, FRAME_BYTES_MAX, FrameReader, HALF_FRAME_BYTES_OF_ONE,
    HALF_FRAMES_BYTES_MAX, HalfFrames, KeeperMessage, MemberMessage, PROTOCOL, frame,
};
use proptest::prelude::*;

fn message() -> impl Strategy<Value = MemberMessage> {
    prop_oneof![
        (any::<u32>(), ".*", any::<u32>(), any::<u32>()).prop_map(
            |(protocol, program, rank, size)| MemberMessage::Attach(AttachRequest {
                protocol,
                ..AttachRequest::new(&program, rank, size)
            })
        ),
        prop::option::of(".*").prop_map(|error| MemberMessage::Leave { error }),
    ]
}

proptest! {
    #[test]
    fn messages_come_whole_from_pieces(
        messages in prop::collection::vec(message(), 1..5),
        cut in 1_usize..50,
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(|one| frame(one).unwrap()).collect();
        let mut reader = FrameReader::default();
        let mut read = Vec::new();
        for piece in bytes.chunks(cut) {
            reader.take(piece);
            while let Some(message) = reader.message::<MemberMessage>().unwrap() {
                read.push(message);
            }
        }
        prop_assert_eq!(read, messages);
    }

    #[test]
    fn foreign_bytes_are_an_error_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut reader = FrameReader::default();
        reader.take(&bytes);
        while let Ok(Some(_)) = reader.message::<KeeperMessage>() {}
    }
}

fn stranger() -> FrameReader {
    FrameReader::of_stranger(Arc::new(HalfFrames::new(HALF_FRAMES_BYTES_MAX)))
}

#[test]
fn a_stranger_says_little_until_it_is_known() {
    let mut reader = stranger();
    let long = frame(&"x".repeat(ATTACH_BYTES_MAX)).unwrap();
    reader.take(&long);
    let error = reader.message::<String>().unwrap_err();
    assert!(
        error.to_string().contains("got a message of 4098 bytes"),
        "{error}"
    );
    let mut reader = stranger();
    reader.is_attached();
    reader.take(&long);
    assert!(reader.message::<String>().unwrap().is_some());
}

#[test]
fn a_length_beyond_the_limit_is_an_error_at_once() {
    let mut reader = FrameReader::default();
    reader.take(&u32::try_from(FRAME_BYTES_MAX + 1).unwrap().to_le_bytes());
    let error = reader.message::<MemberMessage>().unwrap_err();
    assert!(error.to_string().contains("at most 33554432"), "{error}");
}

#[test]
fn a_member_of_any_version_can_be_told_which_versions_have_met() {
    for contents in [
        r#"{"attach": {"protocol": 4, "program": "ocean", "rank": 0, "size": 1}}"#,
        r#"{"attach": {"protocol": 9, "version": "2.0.0", "world": [3, 7], "program": "ocean"}}"#,
    ] {
        let mut reader = stranger();
        reader.take(&u32::try_from(contents.len()).unwrap().to_le_bytes());
        reader.take(contents.as_bytes());
        let Some(MemberMessage::Attach(request)) = reader.message().unwrap() else {
            panic!("{contents}");
        };
        assert_eq!(request.program, "ocean");
        assert_ne!(request.protocol, PROTOCOL);
    }
}

#[test]
fn half_messages_of_several_readers_are_bounded_together() {
    let long = frame(&"x".repeat(200_000)).unwrap();
    let beyond = 150_000 - HALF_FRAME_BYTES_OF_ONE;
    let half = Arc::new(HalfFrames::new(2 * beyond));
    let mut readers: Vec<FrameReader> = (0..3)
        .map(|_| {
            let mut reader = FrameReader::of_stranger(Arc::clone(&half));
            reader.is_attached();
            reader.take(&long[..150_000]);
            reader
        })
        .collect();
    assert!(readers[0].message::<String>().unwrap().is_none());
    assert!(readers[1].message::<String>().unwrap().is_none());
    assert_eq!(half.bytes(), 2 * beyond);
    let error = readers[2].message::<String>().unwrap_err().to_string();
    let numbers = format!("holds {} bytes of such parts", 3 * beyond);
    assert!(error.contains(&numbers), "{error}");
    // Nothing of it is kept, whatever more comes.
    readers[2].take(&long);
    assert!(readers[2].message::<String>().unwrap().is_none());
    assert_eq!(half.bytes(), 2 * beyond);
    // Who says little has room all the same, and who ends a message gives its room back.
    let mut quiet = FrameReader::of_stranger(Arc::clone(&half));
    quiet.take(&[1, 0]);
    assert!(quiet.message::<String>().unwrap().is_none());
    readers[0].take(&long[150_000..]);
    assert!(readers[0].message::<String>().unwrap().is_some());
    assert_eq!(half.bytes(), beyond);
    drop(readers);
    assert_eq!(half.bytes(), 0);
}
