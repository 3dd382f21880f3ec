//! How much a stranger may make this crate look at.
//!
//! Certificates are parsed before their sender is anybody, so every length has a bound of its own, and every error
//! that comes from a bound says which.

/// Certificates in a chain, the leaf included. A private authority needs two at most; the rest is room for an
/// organisation's own intermediates.
pub const CHAIN_CERTIFICATES_MAX: usize = 4;

/// Bytes of one certificate. A certificate with an RSA-4096 key and a dozen names stays below 3 KiB; a proxy with the
/// attributes of several virtual organisations takes some more.
pub const CERTIFICATE_BYTES_MAX: usize = 32 * 1024;

/// Bytes of a name in a certificate, which is the longest a DNS name can be.
pub const NAME_BYTES_MAX: usize = 253;

/// Bytes of a distinguished name in slash form, where it is the name of somebody. Those in use stay below two hundred.
pub const SUBJECT_BYTES_MAX: usize = 1024;

/// Trust anchors of one authority set.
pub const TRUST_ANCHORS_MAX: usize = 64;

/// Revocation lists of one authority set, before older lists of the same issuer are dropped.
pub const REVOCATION_LISTS_MAX: usize = 64;

/// Bytes of one revocation list, about four hundred thousand entries. The largest ones of grids have some megabytes.
pub const REVOCATION_LIST_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Bytes of one file of a trust directory: a revocation list, in base64 with its lines a third longer, and a text for
/// people in front of it.
pub const TRUST_FILE_BYTES_MAX: usize = 2 * REVOCATION_LIST_BYTES_MAX;

/// Values within values in DER. A certificate with an attribute certificate in it has some twelve levels.
pub const DER_NESTING_MAX: usize = 32;

/// Bits of the public exponent of an RSA key. Nearly all have 17; the library that checks signatures takes no more than
/// these, since each bit costs whoever checks them.
pub const RSA_EXPONENT_BITS_MAX: usize = 33;

/// Bytes of a distinguished name in DER. The longest ones of proxies in use have some hundred.
pub const DISTINGUISHED_NAME_BYTES_MAX: usize = 4 * 1024;

/// Bytes of one extension of a certificate. The attribute certificate of a user with a hundred groups takes about
/// five thousand.
pub const EXTENSION_BYTES_MAX: usize = 8 * 1024;

/// Extensions of one certificate. A dozen is many.
pub const EXTENSIONS_MAX: usize = 32;

/// Alternative names of one certificate: host certificates of large services have some dozens.
pub const ALTERNATIVE_NAMES_MAX: usize = 256;

/// Subtrees in one list of an authority's name constraints.
pub const NAME_SUBTREES_MAX: usize = 256;

/// Certificates that a peer of a grid may present: proxies, the end entity, authorities, and some that no path needs,
/// because there are tools that send their whole directory.
pub const GRID_CHAIN_CERTIFICATES_MAX: usize = 32;

/// The highest value of the setting for proxies in a chain.
pub const PROXY_DEPTH_MAX: usize = 20;

/// Authorities above an end entity, the trust anchor included. Grids have two or three.
pub const AUTHORITIES_MAX: usize = 8;

/// Signatures that are checked for one chain, good and wrong ones together, those of the revocation lists of intermediates that
/// the peer sent included. The longest good path with the default settings takes 18, and some for such lists.
pub const SIGNATURE_CHECKS_MAX: usize = 48;

/// Files of the trust directories that are looked into. The IGTF's distribution has some 650.
pub const TRUST_FILES_MAX: usize = 16 * 1024;

/// Bytes of all files of the trust directories together.
pub const TRUST_BYTES_MAX: usize = 512 * 1024 * 1024;

/// Certificates in one file of a trust directory.
pub const CERTIFICATES_IN_FILE_MAX: usize = 64;

/// Authorities that bear one name: old roots beside their successors.
pub const SAME_NAME_AUTHORITIES_MAX: usize = 8;

/// Bytes of a file of a trust directory that is no revocation list.
pub const POLICY_FILE_BYTES_MAX: usize = 1024 * 1024;

/// Statements in one `signing_policy` or `namespaces` file.
pub const POLICY_STATEMENTS_MAX: usize = 1024;

/// Policy languages of proxies that the settings may add.
pub const POLICY_LANGUAGES_MAX: usize = 64;

/// Names of this host for attribute certificates with targets.
pub const ATTRIBUTE_TARGETS_MAX: usize = 64;

/// The highest value of the setting for clocks that are ahead, in seconds.
pub const CLOCK_SKEW_SECONDS_MAX: u64 = 300;

/// Bytes of a private key in PKCS#8. RSA-8192 takes 4.7 KiB.
pub const PRIVATE_KEY_BYTES_MAX: usize = 16 * 1024;

/// Bytes of a credential file.
pub const CREDENTIAL_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Characters of a foreign text (a subject, a URI) that an error repeats.
pub const QUOTED_CHARACTERS_MAX: usize = 120;

/// Characters of a peer's reason, such as why it refuses us. It says what to do, so it is not cut as early as a name.
pub const SENTENCE_CHARACTERS_MAX: usize = 1000;

/// Attribute certificates that one proxy may carry. A user of several virtual organisations has two or three.
pub const ATTRIBUTE_CERTIFICATES_MAX: usize = 8;

/// Attribute names of one attribute certificate. The largest organisations give a few dozen.
pub const FQANS_MAX: usize = 256;

/// Bytes of one attribute name.
pub const FQAN_BYTES_MAX: usize = 512;

/// Generic attributes of one attribute certificate.
pub const GENERIC_ATTRIBUTES_MAX: usize = 256;

/// Certificates that an attribute certificate carries about its signer: the signer's own and its authorities'.
pub const SIGNER_CERTIFICATES_MAX: usize = 4;

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

/// Seconds for which a decision cache keeps an identity.
pub const VERDICT_SECONDS_MAX: u64 = 600;

/// Seconds for which a decision cache keeps a refusal: whoever has mended what was wrong is let in soon.
pub const REFUSAL_SECONDS_MAX: u64 = 60;
