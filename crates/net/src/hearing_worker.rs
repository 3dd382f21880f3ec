//! What a worker hears on its network, from the process that hears it to its slots, each of which may tell its manager.
//!
//! The slots of a worker fork, and their code may be anybody's: so they hear nothing themselves. They look into a file that is the
//! announcer's, of which they have a descriptor to read.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, SHA256_OUTPUT_LEN, digest};
use bytes::Bytes;
use exoskel_node::heard::HeardList;
use exoskel_task::message::{HEARD_BYTES_MAX, HeardWorker, read_heard, write_heard};

use crate::discovery::{DiscoveryError, HeardNews, Hearing};

/// How often a slot looks whether others are heard than before. No manager is told more often.
pub(crate) const LOOKING_TIME: Duration = Duration::from_secs(2);

/// Hears workers, and writes down who is there.
pub struct HearingWorker {
    hearing: Hearing,
    list: HeardList,
    file: HeardFile,
    /// What is in the file; what another process has left there, if nothing was written yet.
    written: Option<Vec<HeardWorker>>,
    epoch: Instant,
}

impl HearingWorker {
    /// Hears from now on.
    ///
    /// # Errors
    /// [`DiscoveryError`] if the system gives no socket.
    pub fn new(file: HeardFile) -> Result<Self, DiscoveryError> {
        Ok(Self {
            hearing: Hearing::new()?,
            list: HeardList::default(),
            file,
            written: None,
            epoch: Instant::now(),
        })
    }

    /// Takes up what has been heard meanwhile.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn look(&mut self) -> io::Result<()> {
        let now = self.epoch.elapsed();
        // Where the system gives no socket now, it may later.
        if self.hearing.is_over(now)
            && let Ok(again) = Hearing::new()
        {
            self.hearing = again;
            self.list.clear();
        }
        loop {
            let news = self.hearing.news(now);
            if news.is_empty() {
                break;
            }
            for heard in news {
                match heard {
                    HeardNews::There(announcement, hint) => {
                        self.list.heard(announcement, hint, true);
                    }
                    HeardNews::Gone(announcement) => self.list.gone(&announcement),
                }
            }
            if self.hearing.is_over(now) {
                break;
            }
        }
        let telling = self.list.telling(now);
        if self.written.as_ref() != Some(&telling) {
            self.file.write(&telling)?;
            self.written = Some(telling);
        }
        Ok(())
    }
}

/// The file: a checksum, and what a manager is told.
#[derive(Debug)]
pub struct HeardFile(File);

impl HeardFile {
    /// The file of this descriptor.
    #[must_use]
    pub fn new(descriptor: OwnedFd) -> Self {
        Self(descriptor.into())
    }

    /// Writes who is heard now, in the place of what was there.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn write(&self, workers: &[HeardWorker]) -> io::Result<()> {
        let told = write_heard(workers);
        let sum = digest(&SHA256, &told);
        self.0
            .write_all_at(&[sum.as_ref(), &told[..]].concat(), 0)?;
        self.0.set_len((SHA256_OUTPUT_LEN + told.len()) as u64)
    }

    /// Who is heard now; nothing if that is just being written, or nobody has written anything that can be read.
    #[must_use]
    pub fn read(&self) -> Option<Vec<HeardWorker>> {
        let bytes_max = SHA256_OUTPUT_LEN + HEARD_BYTES_MAX;
        let length = usize::try_from(self.0.metadata().ok()?.len()).ok()?;
        if !(SHA256_OUTPUT_LEN..=bytes_max).contains(&length) {
            return None;
        }
        let mut bytes = vec![0; length];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        let told = Bytes::from(bytes.split_off(SHA256_OUTPUT_LEN));
        (digest(&SHA256, &told).as_ref() == bytes).then(|| read_heard(told))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};

    fn file() -> (HeardFile, File) {
        let descriptor = memfd_create("heard", MemfdFlags::CLOEXEC).unwrap();
        let other = File::from(descriptor.try_clone().unwrap());
        (HeardFile::new(descriptor), other)
    }

    fn workers(count: usize) -> Vec<HeardWorker> {
        let named = (0..count).map(|number| HeardWorker {
            name: format!("n{number}.lab"),
            addresses: vec!["192.0.2.1:7601".parse().unwrap()],
        });
        named.collect()
    }

    #[test]
    fn what_is_written_is_read() {
        let (heard, _) = file();
        assert_eq!(heard.read(), None, "nobody has heard anything yet");
        for count in [3, 200, 1, 0] {
            heard.write(&workers(count)).unwrap();
            assert_eq!(heard.read(), Some(workers(count)));
        }
    }

    #[test]
    fn what_is_half_written_or_not_ours_is_not_read() {
        let (heard, raw) = file();
        heard.write(&workers(2)).unwrap();
        raw.write_all_at(b"x", SHA256_OUTPUT_LEN as u64 + 3)
            .unwrap();
        assert_eq!(heard.read(), None);
        heard.write(&workers(2)).unwrap();
        raw.set_len(SHA256_OUTPUT_LEN as u64 + 5).unwrap();
        assert_eq!(heard.read(), None);
        raw.set_len(1 << 40).unwrap();
        assert_eq!(heard.read(), None, "larger than anything that we write");
        let malformed = [digest(&SHA256, b"\0").as_ref(), b"\0"].concat();
        raw.set_len(0).unwrap();
        raw.write_all_at(&malformed, 0).unwrap();
        assert_eq!(heard.read(), None);
    }
}
