//! A study: parameters and jobs, run with as many seeds as somebody wants.

use std::sync::Arc;

use crate::error::KeycacheError;
use crate::parameters::Parameters;
use crate::program::ReplayProgram;
use crate::ranks_per_card::RanksPerCard;

/// Most jobs of a study.
const JOBS_MAX: usize = 1 << 8;
/// Most messages of a study, all jobs together.
const STUDY_MESSAGES_MAX: usize = 1 << 27;
/// Most pairs of a process and a rank that it may send to, all jobs together: each has a queue.
const PAIRS_MAX: usize = 1 << 26;

/// What is run: parameters, and the jobs that share the nodes. Each node has as many ranks of each job as
/// [`Parameters::ranks_per_card`] says, rank 0 is on node 0. A run is a function of a study and a seed,
/// so any number of threads may run one study.
#[derive(Clone, Debug)]
pub struct Study {
    pub(crate) parameters: Parameters,
    pub(crate) jobs: Vec<Arc<ReplayProgram>>,
}

impl Study {
    /// Checks that this can run.
    ///
    /// # Errors
    /// [`KeycacheError`] names the parameter or the trace that can't be.
    pub fn new(
        parameters: Parameters,
        jobs: Vec<Arc<ReplayProgram>>,
    ) -> Result<Self, KeycacheError> {
        parameters.validate()?;
        if jobs.is_empty() {
            return Err(KeycacheError::NoJobs);
        }
        let ranks = parameters.ranks() as usize;
        let most = JOBS_MAX.min(PAIRS_MAX / (ranks * ranks));
        if jobs.len() > most {
            let got = jobs.len();
            return Err(KeycacheError::TooManyJobs { got, most });
        }
        let mut messages = 0;
        for program in &jobs {
            let each = parameters.ranks_per_card;
            RanksPerCard::dividing(program.name(), program.ranks(), each.into())?;
            if program.ranks() > ranks {
                return Err(KeycacheError::MoreRanksThanNodes {
                    trace: program.name().to_owned(),
                    ranks: program.ranks(),
                    nodes: parameters.nodes,
                    ranks_per_card: each,
                });
            }
            messages += program.messages();
            if messages > STUDY_MESSAGES_MAX {
                return Err(KeycacheError::TooMany {
                    trace: program.name().to_owned(),
                    what: "messages, with those of the jobs before it",
                    got: messages,
                    most: STUDY_MESSAGES_MAX,
                });
            }
        }
        Ok(Self { parameters, jobs })
    }
}
