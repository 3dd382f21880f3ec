//! What the server behind is told, and what a client may not tell it.

use std::net::SocketAddr;

use aws_lc_rs::{digest, rand};
use bytes::Bytes;
use data_encoding::BASE64;
use exoskel_identity::limits::WORD_BYTES_MAX;
use exoskel_identity::{Authorization, VerifiedIdentity};
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, EXPECT, HOST, HeaderName, PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION, SEC_WEBSOCKET_KEY, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri, Version, request};
use hyper::body::{Body, Frame};
use hyper::ext::Protocol;

use super::unmet::Unmet;
use crate::audit::subject;
use crate::limits::{ACTIONS_BYTES_MAX, REFUSALS_BYTES_MAX};
use crate::peer::Peer;

/// The shared secret of front and server.
const SECRET: HeaderName = HeaderName::from_static("exoskel-front-secret");
const SUBJECT: HeaderName = HeaderName::from_static("exoskel-subject");
const VO: HeaderName = HeaderName::from_static("exoskel-vo");
const FQAN: HeaderName = HeaderName::from_static("exoskel-fqan");
const ACCOUNT: HeaderName = HeaderName::from_static("exoskel-account");
const ACTIONS: HeaderName = HeaderName::from_static("exoskel-actions");
/// Why actions are refused that rules name, for the server behind to say it.
const REFUSALS: HeaderName = HeaderName::from_static("exoskel-refusals");
/// In an answer of the server behind: the action that it has just refused.
const REFUSED: HeaderName = HeaderName::from_static("exoskel-refused");
/// The same for what it requires beside actions.
const UNMET: HeaderName = HeaderName::from_static("exoskel-unmet");
const ANONYMOUS: HeaderName = HeaderName::from_static("exoskel-anonymous");
const LIMITED: HeaderName = HeaderName::from_static("exoskel-limited");
const CLIENT_CERT: HeaderName = HeaderName::from_static("client-cert");
const CLIENT_CERT_CHAIN: HeaderName = HeaderName::from_static("client-cert-chain");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
/// No field of HTTP: programs behind a gateway read it as the address of their proxy (`HTTP_PROXY`).
const PROXY: HeaderName = HeaderName::from_static("proxy");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Names that only the front may use: all that begin so, however they are spelled.
const OWN_PREFIXES: [&str; 5] = [
    "exoskel-",
    "client-cert",
    "x-forwarded-",
    "x-real-ip",
    "forwarded",
];

/// Fields by which a client could ask for another method or path than those that the rules have looked at. Servers of
/// WSGI (Gunicorn) take what `SCRIPT_NAME` says off the beginning of the path if they trust the sender, which the front is.
const OVERRIDES: [&str; 11] = [
    "path-info",
    "script-name",
    "x-http-method-override",
    "x-http-method",
    "x-http-path-override",
    "x-method-override",
    "x-original-uri",
    "x-original-url",
    "x-override-url",
    "x-rewrite-url",
    "x-script-name",
];

/// Fields that say where a body ends.
const LENGTHS: [HeaderName; 2] = [CONTENT_LENGTH, TRANSFER_ENCODING];

/// What [`ACTIONS`] says of actions that no rule names. It is no action's name.
const ANY: &str = "any";

/// Fields that concern one connection only (RFC 9110 section 7.6.1), and those of proxies.
const OF_ONE_HOP: [HeaderName; 10] = [
    CONNECTION,
    KEEP_ALIVE,
    PROXY,
    PROXY_CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Methods that are not passed on in any spelling: methods have a case, but some servers don't look at it.
///
/// CONNECT asks for a tunnel to elsewhere. TRACE, which some servers also know as TRACK, asks for what the server behind was
/// told, the front's secret included (RFC 9110 section 9.3.8).
const REFUSED_METHODS: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];

/// Why a request is not passed on. The client must act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// A method that is never passed on. CONNECT is served if it asks for a WebSocket.
    #[error("CONNECT and TRACE are not served here")]
    Method,
    /// No host, several, or one that is none, or that is addressed to somebody at it, or two that differ.
    #[error("expected exactly one well-formed Host, and no other :authority beside it")]
    Host,
    /// Something else than a path.
    #[error("expected a path that begins with /, after https://HOST or alone")]
    Target,
    /// The stream behind the head would be two things at once.
    #[error("expected a request for a WebSocket without a body")]
    WebSocketBody,
}

/// The fields that state who asks, made once for a connection and again when rules change.
#[derive(Debug)]
pub(super) struct IdentityHeaders(Vec<(HeaderName, HeaderValue)>);

impl IdentityHeaders {
    /// Of a client that proved who it is.
    pub(super) fn new(
        peer: &Peer,
        rules: Option<&Authorization>,
        secret: Option<HeaderValue>,
        chain: bool,
        tell_refused: bool,
    ) -> Self {
        let mut fields = Vec::with_capacity(8);
        let identity = peer.identity();
        let mut put = |name: HeaderName, text: String| {
            // What could not stand in a header would be left out, never cut: `string` writes printable ASCII only.
            if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(text)) {
                fields.push((name, value));
            }
        };
        put(SUBJECT, string(&subject(identity)));
        if let Some(vo) = identity.vo() {
            put(VO, string(vo));
        }
        let fqans: Vec<String> = identity
            .fqans()
            .map(|fqan| string(&fqan.to_string()))
            .collect();
        if !fqans.is_empty() {
            put(FQAN, fqans.join(", "));
        }
        if let Some(proxy) = identity.proxy() {
            put(LIMITED, if proxy.limited { "?1" } else { "?0" }.to_owned());
        }
        let presented = identity.chain();
        if let Some((leaf, others)) = presented.split_first() {
            put(CLIENT_CERT, byte_sequence(leaf));
            if chain && !others.is_empty() {
                let others: Vec<String> = others.iter().map(|one| byte_sequence(one)).collect();
                put(CLIENT_CERT_CHAIN, others.join(", "));
            }
        }
        if let Some(rules) = rules {
            put(ACTIONS, actions(rules, identity));
            let refusals = match tell_refused {
                true => refusals(rules, identity),
                false => String::new(),
            };
            if !refusals.is_empty() {
                put(REFUSALS, refusals);
            }
            if let Some(account) = rules.account(identity) {
                put(ACCOUNT, string(account));
            }
        }
        Self(fields).forwarded_for(peer.address(), secret)
    }

    /// Of a client that is served without an identity.
    pub(super) fn of_stranger(address: SocketAddr, secret: Option<HeaderValue>) -> Self {
        let fields = vec![(ANONYMOUS, HeaderValue::from_static("?1"))];
        Self(fields).forwarded_for(address, secret)
    }

    fn forwarded_for(mut self, address: SocketAddr, secret: Option<HeaderValue>) -> Self {
        let address = address.ip().to_canonical().to_string();
        let address = HeaderValue::from_maybe_shared(Bytes::from(address));
        self.0
            .extend(address.ok().map(|address| (FORWARDED_FOR, address)));
        let proto = HeaderValue::from_static("https");
        self.0.push((FORWARDED_PROTO, proto));
        self.0.extend(secret.map(|secret| (SECRET, secret)));
        self
    }
}

/// What the rules allow somebody: the names of actions; or `any`, and the names of those that are not allowed with a `!`
/// before each.
fn actions(rules: &Authorization, who: &VerifiedIdentity) -> String {
    let any = rules.allows_unnamed(who);
    let mut listed = if any { string(ANY) } else { String::new() };
    for action in rules.named_actions() {
        if rules.decide(who, action).allowed == any {
            continue;
        }
        let mark = if any { "!" } else { "" };
        let item = string(&format!("{mark}{action}"));
        if listed.len() + item.len() > ACTIONS_BYTES_MAX {
            tracing::warn!(
                "the policy names more actions than fit into a header of {ACTIONS_BYTES_MAX} bytes: the server behind learns of fewer"
            );
            // Without the rest of the exceptions `any` would allow too much.
            return if any { String::new() } else { listed };
        }
        if !listed.is_empty() {
            listed.push_str(", ");
        }
        listed.push_str(&item);
    }
    listed
}

/// The actions that rules name and don't allow somebody, each with the reason; those that fit.
fn refusals(rules: &Authorization, who: &VerifiedIdentity) -> String {
    let mut listed = String::new();
    for action in rules.named_actions() {
        let decision = rules.decide(who, action);
        let item = format!("{};why={}", string(action), string(&decision.reason));
        let separator = if listed.is_empty() { "" } else { ", " };
        let bytes = listed.len() + separator.len() + item.len();
        if !decision.allowed && bytes <= REFUSALS_BYTES_MAX {
            listed.push_str(separator);
            listed.push_str(&item);
        }
    }
    listed
}

/// Takes from an answer which action the server behind says that it refused.
pub(super) fn take_refused(headers: &mut HeaderMap) -> Option<String> {
    let value = headers.remove(REFUSED)?;
    let action = value.to_str().ok()?.strip_prefix('"')?.strip_suffix('"')?;
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:/+".contains(&byte);
    let is_action =
        !action.is_empty() && action.len() <= WORD_BYTES_MAX && action.bytes().all(is_word);
    is_action.then(|| action.to_owned())
}

/// Takes from an answer which requirement the server behind says that the client does not meet.
pub(super) fn take_unmet(headers: &mut HeaderMap) -> Option<Unmet> {
    Unmet::parse(headers.remove(UNMET)?.to_str().ok()?)
}

/// A String of RFC 9651 (section 3.3.3). Names are written in ASCII by their own rules; anything else is replaced by
/// what no name contains.
fn string(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            ' '..='~' => quoted.push(character),
            _ => quoted.push('?'),
        }
    }
    quoted.push('"');
    quoted
}

/// A Byte Sequence of RFC 9651 (section 3.3.5).
fn byte_sequence(bytes: &[u8]) -> String {
    format!(":{}:", BASE64.encode(bytes))
}

/// How a client asks to speak WebSocket. Any other protocol stays unasked: a tunnel that carries HTTP would carry headers
/// that nobody has looked at.
#[derive(Clone, Debug)]
pub(super) enum WebSocket {
    /// By an upgrade of its HTTP/1.1 connection (RFC 6455 section 4.1). Key and answer to it pass between client and server.
    Upgrade,
    /// By an extended CONNECT of HTTP/2 (RFC 8441 section 5), which has no key: the front, for which the server behind
    /// speaks HTTP/1.1, has one of its own.
    Connect {
        /// `Sec-WebSocket-Key`
        key: HeaderValue,
        /// `Sec-WebSocket-Accept`, if the server behind speaks WebSocket.
        accept: HeaderValue,
    },
}

/// What RFC 6455 section 1.3 has a server add to the key.
const ACCEPT_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

impl WebSocket {
    /// The wish in this request, if there is one.
    pub(super) fn of<B>(request: &Request<B>) -> Option<Self> {
        let headers = request.headers();
        if request.version() == Version::HTTP_11
            && request.method() == Method::GET
            && tokens(headers, &CONNECTION).any(|token| token.eq_ignore_ascii_case("upgrade"))
            && tokens(headers, &UPGRADE).eq_by_case(["websocket"])
        {
            return Some(Self::Upgrade);
        }
        let protocol = request.extensions().get::<Protocol>();
        let connects = request.version() == Version::HTTP_2
            && request.method() == Method::CONNECT
            && protocol.is_some_and(|protocol| protocol.as_str() == "websocket");
        if !connects {
            return None;
        }
        let mut random = [0; 16];
        rand::fill(&mut random).ok()?;
        Self::connect(&BASE64.encode(&random))
    }

    fn connect(key: &str) -> Option<Self> {
        let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
        context.update(key.as_bytes());
        context.update(ACCEPT_GUID);
        let accept = BASE64.encode(context.finish().as_ref());
        Some(Self::Connect {
            key: HeaderValue::from_str(key).ok()?,
            accept: HeaderValue::from_str(&accept).ok()?,
        })
    }
}

trait EqualByCase {
    fn eq_by_case<const N: usize>(self, expected: [&str; N]) -> bool;
}

impl<'a, I: Iterator<Item = &'a str>> EqualByCase for I {
    fn eq_by_case<const N: usize>(self, expected: [&str; N]) -> bool {
        let mut got = self.map(str::to_ascii_lowercase);
        expected
            .iter()
            .all(|one| got.next().as_deref() == Some(*one))
            && got.next().is_none()
    }
}

fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    headers
        .get_all(name)
        .into_iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim)
        .filter(|token| !token.is_empty())
}

/// Makes the head that the server behind sees from the one that the client sent.
pub(super) fn prepare(
    head: &mut request::Parts,
    body: &impl Body,
    identity: &IdentityHeaders,
    websocket: Option<&WebSocket>,
    by_path: bool,
) -> Result<(), HeaderError> {
    if matches!(websocket, Some(WebSocket::Connect { .. })) {
        head.method = Method::GET;
    }
    if is_refused(head.method.as_str()) {
        return Err(HeaderError::Method);
    }
    if websocket.is_some() && !body.is_end_stream() {
        return Err(HeaderError::WebSocketBody);
    }
    let host = host(head)?;
    let of_http = |scheme| [Scheme::HTTP, Scheme::HTTPS].contains(scheme);
    let path = head
        .uri
        .path_and_query()
        .filter(|path| path.as_str().starts_with('/') && head.uri.scheme().is_none_or(of_http))
        .cloned()
        .ok_or(HeaderError::Target)?;
    head.uri = target(path)?;
    remove_of_one_hop(&mut head.headers);
    remove(&mut head.headers, is_disguised_length);
    frame(&mut head.headers, body);
    head.headers.remove(EXPECT);
    remove(&mut head.headers, is_own);
    if by_path {
        remove(&mut head.headers, is_override);
    }
    join_cookies(&mut head.headers);
    head.version = Version::HTTP_11;
    head.headers.insert(FORWARDED_HOST, host.clone());
    head.headers.insert(HOST, host);
    if websocket.is_some() {
        head.headers
            .insert(CONNECTION, HeaderValue::from_static("upgrade"));
        head.headers
            .insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    if let Some(WebSocket::Connect { key, .. }) = websocket {
        head.headers.insert(SEC_WEBSOCKET_KEY, key.clone());
    }
    for (name, value) in &identity.0 {
        head.headers.insert(name.clone(), value.clone());
    }
    Ok(())
}

/// Whether a method is never passed on.
pub(super) fn is_refused(method: &str) -> bool {
    REFUSED_METHODS
        .iter()
        .any(|refused| method.eq_ignore_ascii_case(refused))
}

/// The host that the client means: the target's if it names one, else that of the only Host field (RFC 9112 section 3.2).
fn host(head: &request::Parts) -> Result<HeaderValue, HeaderError> {
    let mut fields = head.headers.get_all(HOST).into_iter();
    let field = fields.next();
    if fields.next().is_some() {
        return Err(HeaderError::Host);
    }
    if let Some(authority) = head.uri.authority() {
        // HTTP/1.1 has the target win (RFC 9112 section 3.2.2). In HTTP/2 two hosts are a malformed request (RFC 9113
        // section 8.3.1).
        let differs = |field: &HeaderValue| {
            !field
                .as_bytes()
                .eq_ignore_ascii_case(authority.as_str().as_bytes())
        };
        if !is_host(authority) || head.version == Version::HTTP_2 && field.is_some_and(differs) {
            return Err(HeaderError::Host);
        }
        return HeaderValue::from_str(authority.as_str()).map_err(|_| HeaderError::Host);
    }
    let field = field.ok_or(HeaderError::Host)?;
    let well_formed = field.to_str().is_ok_and(|text| {
        text.parse::<Authority>()
            .is_ok_and(|authority| is_host(&authority))
    });
    if well_formed {
        Ok(field.clone())
    } else {
        Err(HeaderError::Host)
    }
}

/// A host and perhaps a port, without a user's name (RFC 9110 section 4.2.4), which servers read differently.
fn is_host(authority: &Authority) -> bool {
    let (text, host) = (authority.as_str(), authority.host());
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let after = text.strip_prefix(host);
    !host.is_empty()
        && after
            .is_some_and(|after| after.is_empty() || after.strip_prefix(':').is_some_and(is_port))
}

fn target(path: PathAndQuery) -> Result<Uri, HeaderError> {
    // The name is for the pool of connections; what goes over the wire is the path.
    Uri::builder()
        .scheme("http")
        .authority("upstream")
        .path_and_query(path)
        .build()
        .map_err(|_| HeaderError::Target)
}

fn remove_of_one_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| token.parse().ok())
        // Framing is not for a client to take away.
        .filter(|name| *name != CONTENT_LENGTH && *name != HOST)
        .collect();
    for name in OF_ONE_HOP.iter().chain(&named) {
        headers.remove(name);
    }
}

/// States where the body ends, once: by what was understood, not by what the client wrote.
fn frame(headers: &mut HeaderMap, body: &impl Body) {
    match body.size_hint().exact() {
        Some(0) if !headers.contains_key(CONTENT_LENGTH) => {}
        Some(length) => {
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
        }
        None => {
            headers.remove(CONTENT_LENGTH);
            // Said here for GET too, whose body would be left out otherwise.
            headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
    }
}

/// Removes fields, those that only the front may send for example, in every spelling that some server reads as the same: many map `-` and other
/// signs to `_`, or don't look at case.
fn remove(headers: &mut HeaderMap, is_meant: fn(&str) -> bool) {
    let meant: Vec<HeaderName> = headers
        .keys()
        .filter(|name| is_meant(name.as_str()))
        .cloned()
        .collect();
    for name in meant {
        headers.remove(name);
    }
}

/// A sign of a name as those servers read it that tell the fewest apart.
fn plain(byte: u8) -> u8 {
    if byte.is_ascii_alphanumeric() {
        byte.to_ascii_lowercase()
    } else {
        b'-'
    }
}

fn is_override(name: &str) -> bool {
    OVERRIDES.iter().any(|one| is_spelling_of(one, name))
}

/// Whether a field says where the body ends to servers that read `Content_Length` as `Content-Length`.
fn is_disguised_length(name: &str) -> bool {
    LENGTHS
        .iter()
        .any(|one| name != one.as_str() && is_spelling_of(one.as_str(), name))
}

fn is_spelling_of(meant: &str, name: &str) -> bool {
    name.bytes().map(plain).eq(meant.bytes())
}

fn is_own(name: &str) -> bool {
    OWN_PREFIXES.iter().any(|prefix| {
        name.len() >= prefix.len() && name.bytes().zip(prefix.bytes()).all(|(a, b)| plain(a) == b)
    })
}

/// HTTP/2 clients may send cookies in pieces, HTTP/1.1 has one field for them (RFC 9113 section 8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let pieces: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if pieces.len() > 1 {
        let joined = pieces.join(&b"; "[..]);
        if let Ok(joined) = HeaderValue::from_bytes(&joined) {
            headers.insert(COOKIE, joined);
        }
    }
}

/// Whether the server behind agreed to what it was asked for.
pub(super) fn agrees_to_websocket(headers: &HeaderMap) -> bool {
    tokens(headers, &UPGRADE).eq_by_case(["websocket"])
}

/// Removes the secret from the trailers of an answer, should it come back there.
pub(super) fn clean_trailers(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            trailers.remove(SECRET);
            Frame::trailers(trailers)
        }
        Err(frame) => frame,
    }
}

/// Removes from an answer what concerns the connection to the server behind, and the secret should it come back.
pub(super) fn clean_response(headers: &mut HeaderMap, switched: bool) {
    let upgrade = headers.get(UPGRADE).filter(|_| switched).cloned();
    remove_of_one_hop(headers);
    headers.remove(SECRET);
    if let Some(upgrade) = upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, upgrade);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn own_names_are_known_in_every_spelling() {
        for name in [
            "exoskel-subject",
            "Exoskel_Subject",
            "EXOSKEL-FRONT-SECRET",
            "exoskel.vo",
            "client_cert",
            "Client-Cert-Chain",
            "x_forwarded_for",
            "forwarded",
        ] {
            assert!(is_own(name), "{name}");
        }
        for name in [
            "exoske",
            "client-version",
            "accept",
            "x-exoskel-subject",
            "x-forward",
        ] {
            assert!(!is_own(name), "{name}");
        }
    }

    proptest! {
        #[test]
        fn no_spelling_passes(
            name in prop::sample::select(vec!["exoskel-subject", "exoskel-front-secret", "client-cert", "client-cert-chain", "x-forwarded-for"]),
            signs in prop::collection::vec("[-_.~!]", 8),
            capitals in prop::collection::vec(any::<bool>(), 32),
        ) {
            let mut signs = signs.iter();
            let spelled: String = name
                .chars()
                .zip(capitals.iter().cycle())
                .map(|(letter, capital)| match letter {
                    '-' => signs.next().map_or("-", String::as_str).to_owned(),
                    letter if *capital => letter.to_ascii_uppercase().to_string(),
                    letter => letter.to_string(),
                })
                .collect();
            let mut headers = HeaderMap::new();
            headers.insert(
                HeaderName::from_bytes(spelled.as_bytes()).unwrap(),
                HeaderValue::from_static("forged"),
            );
            remove(&mut headers, is_own);
            prop_assert!(headers.is_empty(), "{spelled}");
        }

        #[test]
        fn a_string_reads_back(text in "[ -~]{0,64}") {
            let quoted = string(&text);
            let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap();
            let mut read = String::new();
            let mut characters = inner.chars();
            while let Some(character) = characters.next() {
                prop_assert_ne!(character, '"');
                read.extend(if character == '\\' { characters.next() } else { Some(character) });
            }
            prop_assert_eq!(read, text);
            prop_assert!(HeaderValue::from_str(&quoted).is_ok());
        }
    }

    #[test]
    fn the_answer_to_a_key_is_that_of_rfc_6455() {
        // The example of its section 1.3.
        let websocket = WebSocket::connect("dGhlIHNhbXBsZSBub25jZQ==");
        let Some(WebSocket::Connect { accept, .. }) = websocket else {
            panic!("{websocket:?}")
        };
        assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn names_are_structured_strings() {
        assert_eq!(string("/DC=org/CN=a b"), "\"/DC=org/CN=a b\"");
        assert_eq!(string("/CN=\"x\\"), "\"/CN=\\\"x\\\\\"");
        assert_eq!(string("/CN=\r\nHost: é"), "\"/CN=??Host: ?\"");
    }
}
