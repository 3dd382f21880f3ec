//! Decimal numbers as text.

use crate::Fault;
use crate::fault::limit;
use crate::limits::{DECIMAL_DIGITS_MAX, DECIMAL_EXPONENT_MAX};

/// `[-+]digits[.digits][E[-+]digits]`, `[-+]Infinity`, `[-+][s]NaN[digits]`: what `str(Decimal)` writes.
pub(super) fn check_decimal(text: &str, position: usize) -> Result<(), Fault> {
    if text.len() as u64 > DECIMAL_DIGITS_MAX + 32 {
        return Err(too_many_digits(text.len() as u64));
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let wrong = || Fault::Malformed {
        position,
        got: "text that isn't a decimal number",
        expected: "a decimal number",
    };
    let is_number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    if unsigned == "Infinity" {
        return Ok(());
    }
    let digits = match unsigned
        .strip_prefix('s')
        .unwrap_or(unsigned)
        .strip_prefix("NaN")
    {
        // A payload; longer ones than the context has are for nobody.
        Some(payload) if is_number(payload) && payload.len() <= 64 => return Ok(()),
        Some(_) => return Err(wrong()),
        None => unsigned,
    };
    let (digits, exponent) = digits.split_once('E').unwrap_or((digits, "0"));
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let count = (whole.len() + fraction.len()) as u64;
    if count == 0 || !is_number(whole) || !is_number(fraction) {
        return Err(wrong());
    }
    if count > DECIMAL_DIGITS_MAX {
        return Err(too_many_digits(count));
    }
    let exponent = exponent.strip_prefix(['-', '+']).unwrap_or(exponent);
    if exponent.is_empty() || !is_number(exponent) {
        return Err(wrong());
    }
    let size = exponent.parse().unwrap_or(u64::MAX);
    if size > DECIMAL_EXPONENT_MAX {
        return Err(limit(
            "the exponent of a decimal number",
            size,
            "in size",
            DECIMAL_EXPONENT_MAX,
            "return it as text",
        ));
    }
    Ok(())
}

const fn too_many_digits(got: u64) -> Fault {
    limit(
        "a decimal number",
        got,
        "digits",
        DECIMAL_DIGITS_MAX,
        "return it as text",
    )
}
