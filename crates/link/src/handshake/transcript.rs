//! The session's secret: bound to what both sides said and to who they proved to be.

use aws_lc_rs::digest::{Context, SHA256};

use crate::handshake::EXPORTER_BYTES;
use crate::keys::SessionSecret;

/// Derives the session's secret: HKDF-Extract with the transcript's hash as salt and the TLS exporter as input.
///
/// `hello` and `accept` are the bytes as they travelled, the chains the certificates in DER, leaf first. If the two ends
/// have seen different bytes anywhere, they have different secrets, and the first record fails.
///
/// # Security
/// The exporter must be the one of the TLS session that carried both messages, with
/// [`EXPORTER_LABEL`](crate::handshake::EXPORTER_LABEL) and no context.
pub fn session_secret(
    hello: &[u8],
    accept: &[u8],
    client_chain: &[&[u8]],
    server_chain: &[&[u8]],
    exporter: &[u8; EXPORTER_BYTES],
) -> SessionSecret {
    SessionSecret::extract(
        &transcript_hash(hello, accept, client_chain, server_chain),
        exporter,
    )
}

/// SHA-256 over everything, each piece with its length in front so that no two transcripts read alike.
pub fn transcript_hash(
    hello: &[u8],
    accept: &[u8],
    client_chain: &[&[u8]],
    server_chain: &[&[u8]],
) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    let number = |count: usize| (count as u64).to_be_bytes();
    let mut piece = |bytes: &[u8]| {
        context.update(&number(bytes.len()));
        context.update(bytes);
    };
    piece(hello);
    piece(accept);
    for chain in [client_chain, server_chain] {
        // The count stands like a piece of its own: eight bytes long, with its length.
        piece(&number(chain.len()));
        for certificate in chain {
            piece(certificate);
        }
    }
    let mut hash = [0; 32];
    hash.copy_from_slice(context.finish().as_ref());
    hash
}
