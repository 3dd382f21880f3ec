//! The size of a message's head, counted the same way for every client and for the server behind a front.

use http::header::COOKIE;
use http::{HeaderMap, Request, Response, Uri, Version};
use hyper::ext::Protocol;

use crate::limits::Limits;

/// `HTTP/1.1`, two spaces and the line's end around method and target.
const REQUEST_LINE_SIGNS: usize = 12;

/// `HTTP/1.1 200 ` and the line's end; no reason phrase is passed on.
const STATUS_LINE_BYTES: usize = 15;

/// `: ` and the line's end in each field.
const FIELD_SIGNS: usize = 4;

/// The empty line after the last field.
const END: usize = 2;

/// What each field of HTTP/2 counts beside its name and value (RFC 9113 section 6.5.2).
const FIELD_OF_HTTP_2: usize = 32;

/// What the parsers take before they refuse a head without a word, in multiples of
/// [`Limits::header_bytes_max`]. Up to here we say what the limit is.
const PARSED_FACTOR: usize = 2;

/// Why a head is too large. The client must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum HeadTooLarge {
    #[error("the head of this request has {got} bytes, expected at most {max}")]
    Bytes { got: usize, max: usize },
    #[error("the head of this request has {got} fields, expected at most {max}")]
    Fields { got: usize, max: usize },
}

/// Bytes of a head that the parsers are told to take.
pub(crate) fn parsed_bytes_max(limits: &Limits) -> usize {
    limits.header_bytes_max.saturating_mul(PARSED_FACTOR)
}

/// Whether a request's head is within the limits.
pub(crate) fn check<B>(request: &Request<B>, limits: &Limits) -> Result<(), HeadTooLarge> {
    let (got, max) = (request_bytes(request), limits.header_bytes_max);
    if got > max {
        return Err(HeadTooLarge::Bytes { got, max });
    }
    let (got, max) = (fields(request.headers()), limits.headers_max);
    if got > max {
        return Err(HeadTooLarge::Fields { got, max });
    }
    Ok(())
}

/// Bytes of a request's head: as HTTP/1.1 writes it, or as RFC 9113 section 6.5.2 counts it.
fn request_bytes<B>(request: &Request<B>) -> usize {
    let (method, uri) = (request.method().as_str(), request.uri());
    if request.version() != Version::HTTP_2 {
        let line = method.len() + target_bytes(uri) + REQUEST_LINE_SIGNS;
        return line + fields_bytes(request.headers(), FIELD_SIGNS) + END;
    }
    let protocol = request.extensions().get::<Protocol>();
    let pseudo = [
        (":method", Some(method)),
        (":scheme", uri.scheme_str()),
        (":authority", uri.authority().map(|one| one.as_str())),
        (":path", uri.path_and_query().map(|one| one.as_str())),
        (":protocol", protocol.map(Protocol::as_str)),
    ];
    let pseudo = pseudo
        .into_iter()
        .filter_map(|(name, value)| Some(name.len() + value?.len() + FIELD_OF_HTTP_2))
        .sum::<usize>();
    pseudo + fields_bytes(request.headers(), FIELD_OF_HTTP_2)
}

/// Bytes of an answer's head, as HTTP/1.1 writes it.
pub(crate) fn response_bytes<B>(response: &Response<B>) -> usize {
    STATUS_LINE_BYTES + fields_bytes(response.headers(), FIELD_SIGNS) + END
}

fn target_bytes(uri: &Uri) -> usize {
    let scheme = uri.scheme_str().map_or(0, |scheme| scheme.len() + 3);
    let authority = uri.authority().map_or(0, |one| one.as_str().len());
    let path = uri.path_and_query().map_or(0, |one| one.as_str().len());
    scheme + authority + path
}

fn fields_bytes(headers: &HeaderMap, beside: usize) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + beside)
        .sum()
}

/// How many fields there are. Clients of HTTP/2 may send one cookie field in pieces (RFC 9113 section 8.2.3).
fn fields(headers: &HeaderMap) -> usize {
    let pieces = headers.get_all(COOKIE).iter().count();
    headers.len() - pieces.saturating_sub(1)
}
