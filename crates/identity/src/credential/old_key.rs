//! Private keys in the forms before PKCS#8, which `voms-proxy-init` and old host keys have, brought into PKCS#8.

use x509_parser::asn1_rs::{Any, Class, FromDer as _, Tag};
use zeroize::Zeroizing;

/// `rsaEncryption` with NULL parameters, an AlgorithmIdentifier in DER.
const RSA: &[u8] = &[
    0x30, 13, 6, 9, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1, 5, 0,
];
/// `id-ecPublicKey` as an OBJECT IDENTIFIER in DER.
const EC: &[u8] = &[6, 7, 0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
/// Version 0 of PKCS#8.
const VERSION: &[u8] = &[2, 1, 0];

const SEQUENCE: u8 = 0x30;
const OCTET_STRING: u8 = 4;

/// `RSA PRIVATE KEY` (RFC 8017 appendix A.1.2) as PKCS#8 (RFC 5208).
pub(super) fn from_pkcs1(key: &[u8]) -> Zeroizing<Vec<u8>> {
    pkcs8(RSA, key)
}

/// `EC PRIVATE KEY` (RFC 5915) as PKCS#8; nothing for one that doesn't name its curve.
pub(super) fn from_sec1(key: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
    let (_, whole) = Any::from_der(key).ok()?;
    let (rest, _version) = Any::from_der(whole.data).ok()?;
    let (rest, _secret) = Any::from_der(rest).ok()?;
    let (_, curve) = Any::from_der(rest).ok()?;
    // ECParameters with the tag [0]: the curve's name.
    let is_curve = curve.class() == Class::ContextSpecific && curve.tag() == Tag(0);
    if !is_curve || curve.data.len() > 0x40 {
        return None;
    }
    let mut algorithm = Vec::with_capacity(2 + EC.len() + curve.data.len());
    put(&mut algorithm, SEQUENCE, &[EC, curve.data]);
    Some(pkcs8(&algorithm, key))
}

fn pkcs8(algorithm: &[u8], key: &[u8]) -> Zeroizing<Vec<u8>> {
    // Room for everything at once: a buffer that grows leaves copies of the key behind.
    let mut wrapped = Zeroizing::new(Vec::with_capacity(key.len() + 8));
    put(&mut wrapped, OCTET_STRING, &[key]);
    let length = VERSION.len() + algorithm.len() + wrapped.len();
    let mut whole = Zeroizing::new(Vec::with_capacity(length + 8));
    put(&mut whole, SEQUENCE, &[VERSION, algorithm, &wrapped]);
    whole
}

/// Tag, length and contents. Keys and names are bounded far below the 2^24 bytes that three bytes of length can say.
fn put(out: &mut Vec<u8>, tag: u8, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let [.., high, middle, low] = length.to_be_bytes();
    out.push(tag);
    match length {
        0..=0x7f => out.push(low),
        0x80..=0xff => out.extend([0x81, low]),
        0x100..=0xffff => out.extend([0x82, middle, low]),
        _ => out.extend([0x83, high, middle, low]),
    }
    for part in parts {
        out.extend_from_slice(part);
    }
}
