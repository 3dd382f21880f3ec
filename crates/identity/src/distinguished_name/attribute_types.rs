//! The short names of attribute types, as OpenSSL writes them in both forms of a name.

/// `2.5.4.3`, content octets.
pub(super) const COMMON_NAME: &[u8] = &[0x55, 4, 3];

/// Object identifiers (content octets) and their short names.
const TYPES: &[(&[u8], &str)] = &[
    // joint-iso-itu-t(2) ds(5) attributeType(4)
    (&[0x55, 4, 3], "CN"),
    (&[0x55, 4, 4], "SN"),
    (&[0x55, 4, 5], "serialNumber"),
    (&[0x55, 4, 6], "C"),
    (&[0x55, 4, 7], "L"),
    (&[0x55, 4, 8], "ST"),
    (&[0x55, 4, 9], "street"),
    (&[0x55, 4, 10], "O"),
    (&[0x55, 4, 11], "OU"),
    (&[0x55, 4, 12], "title"),
    (&[0x55, 4, 13], "description"),
    (&[0x55, 4, 15], "businessCategory"),
    (&[0x55, 4, 16], "postalAddress"),
    (&[0x55, 4, 17], "postalCode"),
    (&[0x55, 4, 18], "postOfficeBox"),
    (&[0x55, 4, 20], "telephoneNumber"),
    (&[0x55, 4, 41], "name"),
    (&[0x55, 4, 42], "GN"),
    (&[0x55, 4, 43], "initials"),
    (&[0x55, 4, 44], "generationQualifier"),
    (&[0x55, 4, 45], "x500UniqueIdentifier"),
    (&[0x55, 4, 46], "dnQualifier"),
    (&[0x55, 4, 65], "pseudonym"),
    (&[0x55, 4, 72], "role"),
    (&[0x55, 4, 97], "organizationIdentifier"),
    // PKCS #9
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 1],
        "emailAddress",
    ),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 2],
        "unstructuredName",
    ),
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 8],
        "unstructuredAddress",
    ),
    // RFC 4519: 0.9.2342.19200300.100.1
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 1],
        "UID",
    ),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 3],
        "mail",
    ),
    (
        &[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, 25],
        "DC",
    ),
    // Extended validation: 1.3.6.1.4.1.311.60.2.1
    (
        &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 60, 2, 1, 1],
        "jurisdictionL",
    ),
    (
        &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 60, 2, 1, 2],
        "jurisdictionST",
    ),
    (
        &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 60, 2, 1, 3],
        "jurisdictionC",
    ),
];

/// Older spellings that files of thirty years have.
const ALIASES: &[(&str, &str)] = &[
    ("e", "emailAddress"),
    ("email", "emailAddress"),
    ("userid", "UID"),
];

/// The short name for a type's object identifier (content octets), or nothing for a type without one.
pub(super) fn short_name(oid: &[u8]) -> Option<&'static str> {
    let mut types = TYPES.iter();
    types.find(|(one, _)| *one == oid).map(|(_, name)| *name)
}

/// The spelling of OpenSSL for a type's older one, or nothing where it is none.
pub(crate) fn of_alias(name: &str) -> Option<&'static str> {
    let mut aliases = ALIASES.iter();
    aliases
        .find(|(old, _)| old.eq_ignore_ascii_case(name))
        .map(|(_, known)| *known)
}

/// The type that a text at this place names, up to its `=`, in the spelling of OpenSSL: a short name, one of its older
/// spellings, or an object identifier with dots. Nothing for other text.
pub(crate) fn written_type(text: &str) -> Option<&str> {
    // A name ends where another character stands, so that a long line is not searched again for each of its slashes.
    let end = text.find(|one: char| !one.is_ascii_alphanumeric() && one != '.')?;
    let (name, _) = text
        .split_at_checked(end)
        .filter(|(_, rest)| rest.starts_with('='))?;
    let is = |one: &str| one.eq_ignore_ascii_case(name);
    let known = TYPES.iter().map(|(_, known)| *known).find(|one| is(one));
    let is_identifier = || {
        name.contains('.')
            && name
                .split('.')
                .all(|arc| !arc.is_empty() && arc.bytes().all(|byte| byte.is_ascii_digit()))
    };
    known
        .or_else(|| of_alias(name))
        .or_else(|| is_identifier().then_some(name))
}
