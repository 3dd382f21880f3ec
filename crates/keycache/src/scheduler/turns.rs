//! One job at a time on all nodes.

/// Whose turn it is among the jobs that haven't ended, in the order in which they were given.
#[derive(Debug)]
pub(crate) struct Turns {
    jobs: Vec<u16>,
    current: usize,
}

impl Turns {
    pub(crate) fn new(jobs: Vec<u16>) -> Self {
        Self { jobs, current: 0 }
    }

    /// The job that has the nodes.
    pub(crate) fn current(&self) -> Option<u16> {
        self.jobs.get(self.current).copied()
    }

    /// The next one's turn; says whether that is another one.
    pub(crate) fn pass(&mut self) -> bool {
        if self.jobs.len() < 2 {
            return false;
        }
        self.current = (self.current + 1) % self.jobs.len();
        true
    }

    /// A job has ended. If it had the nodes, the next one has them.
    pub(crate) fn end(&mut self, job: u16) {
        if let Some(place) = self.jobs.iter().position(|other| *other == job) {
            self.jobs.remove(place);
            if place < self.current {
                self.current -= 1;
            }
            if self.current >= self.jobs.len() {
                self.current = 0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_take_turns_until_they_end() {
        let mut turns = Turns::new(vec![0, 1, 2]);
        assert!(turns.pass());
        assert_eq!(turns.current(), Some(1));
        turns.end(0);
        assert_eq!(turns.current(), Some(1));
        turns.end(1);
        assert_eq!(turns.current(), Some(2));
        assert!(!turns.pass());
        turns.end(2);
        assert_eq!(turns.current(), None);
    }
}
