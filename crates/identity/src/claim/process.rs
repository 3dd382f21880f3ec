//! The names of a job's processes: the host's name, the process's number, and the job.
//!
//! A job is an authority of its own, which lives as long as whoever made it. Its certificates say `exoskel:name:HOST#PROCESS.JOB`: the process
//! with this number of that job, on that host. No other name has a `#`, so versions that know nothing of jobs refuse such a certificate, and
//! no authority that isn't a job's makes one.

use std::fmt;
use std::str::FromStr;

use crate::claim::ClaimError;
use crate::hex::hex;
use crate::peer_text::PeerText;

/// Bytes of a job's number.
pub const JOB_NUMBER_BYTES: usize = 16;

/// Stands between a host's name and which of its processes is meant.
pub(crate) const PROCESS_MARK: char = '#';

/// Which job: a random number, in 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobNumber([u8; JOB_NUMBER_BYTES]);

/// Which process of which job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobProcess {
    /// The job.
    pub job: JobNumber,
    /// Its process, counted from 0 in the order in which they were asked for; 0 is the one that has made the job.
    pub number: u32,
}

impl JobNumber {
    /// The job of a random number.
    #[must_use]
    pub const fn new(random: [u8; JOB_NUMBER_BYTES]) -> Self {
        Self(random)
    }
}

impl fmt::Display for JobNumber {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(&hex(&self.0))
    }
}

impl FromStr for JobNumber {
    type Err = ClaimError;

    /// Reads 32 small hexadecimal digits; there is one spelling of a number.
    fn from_str(text: &str) -> Result<Self, ClaimError> {
        let digit = |character: u8| match character {
            b'0'..=b'9' => Some(character - b'0'),
            b'a'..=b'f' => Some(character - b'a' + 10),
            _ => None,
        };
        let mut bytes = [0; JOB_NUMBER_BYTES];
        let mut digits = text.bytes().map(digit);
        for byte in &mut bytes {
            match (digits.next().flatten(), digits.next().flatten()) {
                (Some(high), Some(low)) => *byte = high << 4 | low,
                _ => return Err(bad_process(text)),
            }
        }
        match digits.next() {
            None => Ok(Self(bytes)),
            Some(_) => Err(bad_process(text)),
        }
    }
}

impl fmt::Display for JobProcess {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.number, self.job)
    }
}

impl FromStr for JobProcess {
    type Err = ClaimError;

    /// Reads `NUMBER.JOB`. A number has one spelling: no sign and no zeros in front.
    fn from_str(text: &str) -> Result<Self, ClaimError> {
        let (number, job) = text.split_once('.').ok_or_else(|| bad_process(text))?;
        let read: u32 = number.parse().map_err(|_| bad_process(text))?;
        if read.to_string() != number {
            return Err(bad_process(text));
        }
        Ok(Self {
            job: job.parse().map_err(|_| bad_process(text))?,
            number: read,
        })
    }
}

fn bad_process(text: &str) -> ClaimError {
    ClaimError::BadProcess {
        got: PeerText::new(text),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_process_reads_back(number: u32, job: [u8; JOB_NUMBER_BYTES]) {
            let process = JobProcess { job: JobNumber::new(job), number };
            prop_assert_eq!(process.to_string().parse(), Ok(process));
        }

        /// Whatever reads as a process writes back as the same text, so no two texts mean the same.
        #[test]
        fn a_process_has_one_spelling(text in "[+0-9]{1,3}[.][0-9a-fA-F]{31,33}") {
            if let Ok(process) = text.parse::<JobProcess>() {
                prop_assert_eq!(process.to_string(), text);
            }
        }
    }

    #[test]
    fn what_is_no_process_is_refused() {
        let job = "0123456789abcdef0123456789abcdef";
        for text in [
            String::new(),
            job.to_owned(),
            format!("4294967296.{job}"),
            format!("1.{}", job.to_uppercase()),
            format!("1.{}", &job[1..]),
            format!("1.{job}0"),
            format!("1..{job}"),
        ] {
            assert!(text.parse::<JobProcess>().is_err(), "{text:?}");
        }
    }
}
