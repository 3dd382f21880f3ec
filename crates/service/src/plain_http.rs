//! Clients that speak HTTP without TLS to the port: they are told so in words, since an alert of TLS is none to them.

use crate::front::METHODS;

/// Bytes at the start of a connection by which a request is known.
const KNOWN_BY_BYTES: usize = 8;

/// The whole answer.
pub(crate) const ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 69\r\n\
    Connection: close\r\n\r\nthis port speaks HTTPS: write https:// instead of http:// in the URL\n";

/// What a client sent in the place of a handshake.
#[derive(Debug, thiserror::Error)]
#[error("a request of HTTP, expected a handshake of TLS: the client has to use https://")]
pub(crate) struct PlainHttp;

/// Whether a connection that begins so begins with a request of HTTP. No handshake of TLS does: its first byte is 22.
pub(crate) fn is_request(start: &[u8]) -> bool {
    METHODS.iter().any(|method| {
        let request = method.bytes().chain([b' ']).take(KNOWN_BY_BYTES);
        let length = (method.len() + 1).min(KNOWN_BY_BYTES);
        start.len() >= length && start.iter().copied().take(length).eq(request)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_known_by_their_first_bytes() {
        for start in [
            "GET / HTTP/1.1",
            "PUT /",
            "OPTIONS * ",
            "PRI * HTTP/2.0",
            "PROPFIND /",
        ] {
            assert!(is_request(start.as_bytes()), "{start}");
        }
        for start in [
            "",
            "GET",
            "GETS /",
            "get /",
            "\x16\x03\x01\x02\0\x01",
            "SSH-2.0-x",
        ] {
            assert!(!is_request(start.as_bytes()), "{start:?}");
        }
    }

    #[test]
    fn the_answer_states_its_length() {
        let answer = String::from_utf8(ANSWER.to_vec()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}\r\n", body.len())));
    }
}
