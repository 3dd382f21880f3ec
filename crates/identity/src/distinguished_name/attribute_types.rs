//! The short names of attribute types, as OpenSSL writes them in both forms of a name.

/// `2.5.4.3`, content octets.
pub(super) const COMMON_NAME: &[u8] = &[0x55, 4, 3];

/// The short name for a type's object identifier (content octets), or nothing for a type without one.
pub(super) fn short_name(oid: &[u8]) -> Option<&'static str> {
    Some(match oid {
        // joint-iso-itu-t(2) ds(5) attributeType(4)
        [0x55, 4, last] => match last {
            3 => "CN",
            4 => "SN",
            5 => "serialNumber",
            6 => "C",
            7 => "L",
            8 => "ST",
            9 => "street",
            10 => "O",
            11 => "OU",
            12 => "title",
            13 => "description",
            15 => "businessCategory",
            16 => "postalAddress",
            17 => "postalCode",
            18 => "postOfficeBox",
            20 => "telephoneNumber",
            41 => "name",
            42 => "GN",
            43 => "initials",
            44 => "generationQualifier",
            45 => "x500UniqueIdentifier",
            46 => "dnQualifier",
            65 => "pseudonym",
            72 => "role",
            97 => "organizationIdentifier",
            _ => return None,
        },
        // PKCS #9
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, last] => match last {
            1 => "emailAddress",
            2 => "unstructuredName",
            8 => "unstructuredAddress",
            _ => return None,
        },
        // RFC 4519: 0.9.2342.19200300.100.1
        [0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1, last] => match last {
            1 => "UID",
            3 => "mail",
            25 => "DC",
            _ => return None,
        },
        // Extended validation: 1.3.6.1.4.1.311.60.2.1
        [0x2b, 6, 1, 4, 1, 0x82, 0x37, 60, 2, 1, last] => match last {
            1 => "jurisdictionL",
            2 => "jurisdictionST",
            3 => "jurisdictionC",
            _ => return None,
        },
        _ => return None,
    })
}
