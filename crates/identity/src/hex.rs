//! Bytes for people.

/// Bytes as hexadecimal digits in small letters.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing into a string does not fail");
            text
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::der::without_leading_zeros;

    #[test]
    fn serials_have_one_form() {
        assert_eq!(without_leading_zeros(&[0, 0, 1, 0]), [1, 0]);
        assert_eq!(without_leading_zeros(&[0, 0]), [0_u8; 0]);
        assert_eq!(hex(&[0, 0xab, 0x10]), "00ab10");
    }
}
