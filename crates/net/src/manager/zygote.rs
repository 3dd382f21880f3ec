//! A zygote as the driver sees it: a child of this process that has imported what slots need, and forks them. They become children of
//! this process too (`python/exoskel/zygote.py`). Requests and answers wait for nothing, only its end does.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command as Process;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, sendmsg, socketpair,
};

use super::child_process::{ChildProcess, ChildState};
use crate::descendants::MARK;

/// Longer than any answer.
const ANSWER_BYTES_MAX: usize = 256;

/// How long a child may take to say which process it is when its zygote has been ended right behind the fork.
const LAST_WORDS_TIME: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// What a child is given: options, connection, credential, policy.
const DESCRIPTORS_MAX: usize = 4;

/// What forks the children of a manager.
#[derive(Debug)]
pub(super) struct Zygote {
    process: ChildProcess,
    control: OwnedFd,
    /// The children that it has not told of yet, by their marks. The recruiter asks for a few dozens at once at most.
    asked: HashMap<String, u32>,
    has_answered: bool,
}

/// What a zygote has said of a child: its process, or why there is none.
pub(super) type ForkAnswer = (u32, io::Result<ChildProcess>);

impl Zygote {
    /// Starts one. What its children will be marked by is of the length of `mark`.
    pub(super) fn start(command: &[OsString], mark: &str) -> io::Result<Self> {
        let (control, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let mut process = Process::new(&command[0]);
        process.args(&command[1..]);
        process.args(["--zygote-fd", "0", "--starter"]);
        process.arg(std::process::id().to_string());
        // In this place no other child of this process can inherit it.
        process.stdin(theirs);
        process.process_group(0).env(MARK, mark);
        let number = process.spawn()?.id();
        Ok(Self {
            process: ChildProcess::new(number).ok_or(io::ErrorKind::InvalidData)?,
            control,
            asked: HashMap::new(),
            has_answered: false,
        })
    }

    /// Whether it has not ended. It may stand still.
    pub(super) fn runs(&self) -> bool {
        self.process.state() == ChildState::Runs
    }

    /// Whether it has answered once: it has imported what slots need.
    pub(super) fn has_answered(&self) -> bool {
        self.has_answered
    }

    /// Whether it has told of all that it was asked for.
    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_empty()
    }

    /// Asks for a child, whose mark is its own.
    ///
    /// # Errors
    /// When the zygote has ended, or takes no more requests now.
    pub(super) fn ask(
        &mut self,
        number: u32,
        mark: &str,
        words: &[&str],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !beside.push(SendAncillaryMessage::ScmRights(descriptors)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let words = [&["--mark", mark], words].concat().join("\0");
        let words = [IoSlice::new(words.as_bytes())];
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.control, &words, &mut beside, flags)?;
        self.asked.insert(mark.to_owned(), number);
        Ok(())
    }

    /// The answers that have come since the last call.
    pub(super) fn answers(&mut self) -> Vec<ForkAnswer> {
        let mut answers = Vec::new();
        while let Ok(said) = hear(&self.control)
            && !said.is_empty()
        {
            answers.extend(answer(&said, &mut self.asked));
        }
        self.has_answered |= !answers.is_empty();
        answers
    }

    /// Ends it. Its children live on: gives what was said of the last ones.
    pub(super) fn end(self) -> Vec<ForkAnswer> {
        let Self {
            process,
            control,
            mut asked,
            ..
        } = self;
        process.kill();
        let mut answers = Vec::new();
        // A child closes its copy of the other end when it has said which process it is.
        loop {
            let mut waiting = [PollFd::new(&control, PollFlags::IN)];
            let ready = poll(&mut waiting, Some(&LAST_WORDS_TIME));
            match ready.map(|_| hear(&control)) {
                Ok(Ok(said)) if !said.is_empty() => answers.extend(answer(&said, &mut asked)),
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return answers,
            }
        }
    }
}

/// The next message, empty when there will be none any more; an error if there is none now.
fn hear(control: &OwnedFd) -> Result<String, Errno> {
    let mut buffer = [0; ANSWER_BYTES_MAX];
    let (length, _) = recv(control, &mut buffer, RecvFlags::DONTWAIT)?;
    Ok(String::from_utf8_lossy(buffer.get(..length).unwrap_or_default()).into_owned())
}

/// What was said, if it is of somebody who was asked for: the number of a process, or of an error behind a minus, and a mark. Both zygote
/// and child say it, as either of them may be ended before it can.
fn answer(said: &str, asked: &mut HashMap<String, u32>) -> Option<ForkAnswer> {
    let (said, mark) = said.split_once(' ')?;
    let said = said.parse::<i32>().ok()?;
    let child = asked.remove(mark)?;
    let process = u32::try_from(said).ok().and_then(ChildProcess::new);
    let refusal = || io::Error::from_raw_os_error(said.saturating_neg());
    Some((child, process.ok_or_else(refusal)))
}
