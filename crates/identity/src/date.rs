//! Times of certificates, for messages.

use std::fmt;

use rustls_pki_types::UnixTime;
use x509_parser::time::ASN1Time;

/// A time in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Date(pub UnixTime);

impl fmt::Display for Date {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = i64::try_from(self.0.as_secs()).ok();
        match seconds.and_then(|seconds| ASN1Time::from_timestamp(seconds).ok()) {
            Some(time) => {
                let time = time.to_datetime();
                let (year, month, day) = time.to_calendar_date();
                let (hour, minute, second) = time.to_hms();
                let month = u8::from(month);
                write!(
                    formatter,
                    "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC"
                )
            }
            None => write!(formatter, "{} s after 1970", self.0.as_secs()),
        }
    }
}

pub(crate) fn unix_time(time: ASN1Time) -> UnixTime {
    // Nothing valid ends before 1970; a time before it counts as 1970 and so as past.
    UnixTime::since_unix_epoch(std::time::Duration::from_secs(
        u64::try_from(time.timestamp()).unwrap_or(0),
    ))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates_are_written_for_people() {
        let date =
            |seconds| Date(UnixTime::since_unix_epoch(Duration::from_secs(seconds))).to_string();
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(date(1_700_000_000), "2023-11-14 22:13:20 UTC");
        assert_eq!(date(u64::MAX), "18446744073709551615 s after 1970");
    }
}
