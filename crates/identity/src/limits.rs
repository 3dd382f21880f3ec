//! How much a stranger may make this crate look at.
//!
//! Certificates are parsed before their sender is anybody, so every length has a bound of its own, and every error
//! that comes from a bound says which.

/// Certificates in a chain, the leaf included. A private authority needs two at most; the rest is room for an
/// organisation's own intermediates.
pub const CHAIN_CERTIFICATES_MAX: usize = 4;

/// Bytes of one certificate. A certificate with an RSA-4096 key and a dozen names stays below 3 KiB.
pub const CERTIFICATE_BYTES_MAX: usize = 16 * 1024;

/// Bytes of a name in a certificate, which is the longest a DNS name can be.
pub const NAME_BYTES_MAX: usize = 253;

/// Trust anchors of one authority set.
pub const TRUST_ANCHORS_MAX: usize = 64;

/// Revocation lists of one authority set, before older lists of the same issuer are dropped.
pub const REVOCATION_LISTS_MAX: usize = 64;

/// Bytes of one revocation list, about a hundred thousand entries.
pub const REVOCATION_LIST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of a private key in PKCS#8. RSA-8192 takes 4.7 KiB.
pub const PRIVATE_KEY_BYTES_MAX: usize = 16 * 1024;

/// Bytes of a credential file.
pub const CREDENTIAL_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Characters of a foreign text (a subject, a URI) that an error repeats.
pub const QUOTED_CHARACTERS_MAX: usize = 120;

/// Attribute certificates that one proxy may carry. A user of several virtual organisations has two or three.
pub const ATTRIBUTE_CERTIFICATES_MAX: usize = 8;

/// Attribute names of one attribute certificate. The largest organisations give a few dozen.
pub const FQANS_MAX: usize = 256;

/// Bytes of one attribute name.
pub const FQAN_BYTES_MAX: usize = 512;

/// Generic attributes of one attribute certificate.
pub const GENERIC_ATTRIBUTES_MAX: usize = 256;

/// Hosts to which one attribute certificate may be restricted.
pub const ATTRIBUTE_TARGETS_MAX: usize = 64;

/// Certificates that an attribute certificate carries about its signer: the signer's own and its authorities'.
pub const SIGNER_CERTIFICATES_MAX: usize = 4;

/// Bytes of one file in a `vomsdir`.
pub const VOMS_FILE_BYTES_MAX: usize = 64 * 1024;

/// Chains of names in one `.lsc` file.
pub const SIGNER_CHAINS_MAX: usize = 64;

/// Names in one chain of an `.lsc` file.
pub const SIGNER_CHAIN_NAMES_MAX: usize = 16;

/// Bytes of a pattern of distinguished or attribute names.
pub const PATTERN_BYTES_MAX: usize = 2048;

/// Rules of a policy that allow, and of those that deny. Each is looked at for each decision.
pub const AUTHORIZATION_RULES_MAX: usize = 1024;

/// Bytes of a ban list or a grid-mapfile.
pub const SITE_LIST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of the name of an action, or of an account.
pub const WORD_BYTES_MAX: usize = 64;
