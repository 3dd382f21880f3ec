//! Programs over small values, and what they mean: one item after the other.

use exoskel_flow::{FunctionId, Skeleton};

/// A number or a list, and whether a stranger has touched it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// What it is.
    pub data: Data,
    /// Whether a stranger has.
    pub touched: bool,
}

/// What functions work on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Data {
    /// A number.
    Number(u64),
    /// A list.
    List(Vec<Self>),
}

impl Value {
    /// One that no stranger has touched.
    #[must_use]
    pub fn untouched(data: Data) -> Self {
        let touched = false;
        Self { data, touched }
    }
}

impl Data {
    /// Appends its bytes.
    pub fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Number(number) => {
                out.push(0);
                out.extend(number.to_be_bytes());
            }
            Self::List(members) => {
                out.push(1);
                out.extend((members.len() as u64).to_be_bytes());
                members.iter().for_each(|member| member.write(out));
            }
        }
    }

    /// Takes it off the front of these bytes, if it is there.
    pub fn read(bytes: &mut &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk()?;
        *bytes = rest;
        let number = u64::from_be_bytes(*number);
        match kind {
            0 => Some(Self::Number(number)),
            1 => (0..number)
                .map(|_| Self::read(bytes))
                .collect::<Option<_>>()
                .map(Self::List),
            _ => None,
        }
    }

    /// A number that tells values apart, mostly.
    #[must_use]
    pub fn sum(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::List(members) => {
                let mixed = members.iter().zip(1..);
                mixed.fold(3, |sum, (member, place)| {
                    sum.wrapping_mul(31).wrapping_add(member.sum() * place) % 10_007
                })
            }
        }
    }

    /// A list, of one member if it is none.
    fn members(self) -> Vec<Self> {
        match self {
            Self::List(members) => members,
            number @ Self::Number(_) => vec![number],
        }
    }
}

/// A function raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Raised {
    /// Which one.
    pub function: u32,
    /// [`Data::sum`] of what it was called with.
    pub sum: u64,
}

/// What an item comes to: a value, or an exception, which is one of these. There are none if there was nothing to make a value of.
pub type Outcome = Result<Data, Vec<Raised>>;

/// Functions from this one on raise now and then.
pub const RAISING: u32 = 100;

/// The function of this number.
///
/// # Errors
/// When it raises.
pub fn call(function: u32, value: &Data) -> Result<Data, Raised> {
    let sum = value.sum();
    if function >= RAISING && sum % 13 == 5 {
        return Err(Raised { function, sum });
    }
    Ok(Data::Number((sum * 7 + u64::from(function)) % 10_007))
}

/// The parts of a value.
///
/// # Errors
/// When the function raises.
pub fn split(function: Option<u32>, value: &Data) -> Result<Vec<Data>, Raised> {
    let Some(function) = function else {
        return Ok(value.clone().members());
    };
    let number = call(function, value)?.sum();
    Ok((0..number % 5)
        .map(|part| Data::Number(number + part))
        .collect())
}

/// One value of a list of results.
///
/// # Errors
/// When the function raises.
pub fn join(function: Option<u32>, results: Vec<Data>) -> Result<Data, Raised> {
    let list = Data::List(results);
    function.map_or_else(|| Ok(list.clone()), |function| call(function, &list))
}

/// The operator of reductions: associative, and not commutative.
#[must_use]
pub fn operator(first: Data, second: Data) -> Data {
    let mut members = first.members();
    members.extend(second.members());
    Data::List(members)
}

/// Whether a value is the result of a loop.
#[must_use]
pub fn until(function: u32, value: &Data) -> bool {
    (value.sum() + u64::from(function)).is_multiple_of(3)
}

/// Whether a problem is its own solution.
#[must_use]
pub fn is_base(value: &Data) -> bool {
    value.sum() < 20
}

/// The smaller problems that another one is divided into.
#[must_use]
pub fn divide(value: &Data) -> Vec<Data> {
    let sum = value.sum() % 300;
    let part = |part| Data::Number((sum / 2).saturating_sub(part));
    (0..sum % 3 + 1).map(part).collect()
}

/// What an item that is fed back comes to: whether it goes in again or is a result, for each. What goes in again is smaller.
///
/// # Errors
/// When the function raises.
pub fn fed_back(function: u32, value: &Data) -> Result<Vec<(bool, Data)>, Raised> {
    let mixed = call(function, value)?.sum();
    let size = value.sum() % 300;
    let entry = |part: u64| {
        let goes_in_again = size > 3 && !(mixed + part).is_multiple_of(3);
        let number = (size / 2).saturating_sub(part);
        (goes_in_again, Data::Number(number))
    };
    Ok((0..=size % 3).map(entry).collect())
}

/// All results of an item that is fed back.
///
/// # Errors
/// When the function raises, for it or for what it feeds back.
pub fn results(function: u32, value: &Data) -> Result<Vec<Data>, Vec<Raised>> {
    let (mut all, mut exceptions) = (Vec::new(), Vec::new());
    for (goes_in_again, data) in fed_back(function, value).map_err(|raised| vec![raised])? {
        match goes_in_again {
            true => match results(function, &data) {
                Ok(results) => all.extend(results),
                Err(raised) => exceptions.extend(raised),
            },
            false => all.push(data),
        }
    }
    match exceptions.is_empty() {
        true => Ok(all),
        false => Err(exceptions),
    }
}

/// The initial value of a reduction, of a state and of a scan.
#[must_use]
pub fn initial() -> Data {
    Data::Number(4711)
}

/// Its number in the table of functions, where it travels as an item does.
pub const INITIAL: u32 = 201;

/// The next state, and a result.
///
/// # Errors
/// When the function raises.
pub fn carry(function: u32, state: Data, item: Data) -> Result<(Data, Data), Raised> {
    let result = call(function, &Data::List(vec![state.clone(), item.clone()]))?;
    let state = Data::Number((state.sum() * 31 + item.sum()) % 10_007);
    Ok((state, result))
}

/// Neither associative nor commutative: a scan goes from the left.
///
/// # Errors
/// When the function raises.
pub fn scan(function: u32, first: Data, second: Data) -> Result<Data, Raised> {
    call(function, &Data::List(vec![first, second]))
}

/// What each item comes to, of all items in front of this skeleton.
#[must_use]
pub fn run(skeleton: &Skeleton, items: Vec<Outcome>) -> Vec<Outcome> {
    let each = |work: &dyn Fn(Data) -> Outcome| {
        let items = items.iter().cloned();
        items.map(|item| item.and_then(work)).collect()
    };
    match skeleton {
        Skeleton::Seq(FunctionId(function)) => each(&|item| one(call(*function, &item))),
        Skeleton::Farm(inner) => run(inner, items),
        Skeleton::Pipeline(stages) => stages.iter().fold(items, |items, stage| run(stage, items)),
        Skeleton::FlatMap(FunctionId(function)) => {
            let parts =
                |item: Outcome| match item.and_then(|item| one(split(Some(*function), &item))) {
                    Ok(parts) => parts.into_iter().map(Ok).collect(),
                    Err(raised) => vec![Err(raised)],
                };
            items.into_iter().flat_map(parts).collect()
        }
        Skeleton::Feedback(FunctionId(function)) => {
            let all = |item: Outcome| match item.and_then(|item| results(*function, &item)) {
                Ok(results) => results.into_iter().map(Ok).collect(),
                Err(raised) => vec![Err(raised)],
            };
            items.into_iter().flat_map(all).collect()
        }
        Skeleton::Map {
            split: splits,
            worker,
            join: joins,
        } => each(&|item| {
            let number = |function: &Option<FunctionId>| function.map(|function| function.0);
            let parts = one(split(number(splits), &item))?;
            let results = run(worker, parts.into_iter().map(Ok).collect());
            one(join(number(joins), all(results)?))
        }),
        Skeleton::Reduce { initial: first, .. } => {
            let folded = all(items).and_then(|all| {
                let first = first.map(|_| initial());
                let values = first.into_iter().chain(all);
                values.reduce(operator).ok_or_else(Vec::new)
            });
            vec![folded]
        }
        Skeleton::Stateful { function, .. } => {
            let mut state = initial();
            let work = |item: Outcome| {
                let (next, result) = one(carry(function.0, state.clone(), item?))?;
                state = next;
                Ok(result)
            };
            items.into_iter().map(work).collect()
        }
        Skeleton::Scan {
            operator,
            initial: first,
        } => {
            let mut state = first.map(|_| initial());
            let before = state.clone().map(Ok);
            let work = |item: Outcome| {
                let item = item?;
                let next = match state.clone() {
                    Some(state) => one(scan(operator.0, state, item))?,
                    None => item,
                };
                state = Some(next.clone());
                Ok(next)
            };
            let results: Vec<_> = items.into_iter().map(work).collect();
            before.into_iter().chain(results).collect()
        }
        Skeleton::Iterate {
            body,
            until: FunctionId(function),
            at_most,
        } => each(&|item| {
            let mut value = item;
            for round in 1.. {
                value = all(run(body, vec![Ok(value)]))?
                    .pop()
                    .ok_or_else(Vec::new)?;
                if until(*function, &value) || *at_most == Some(round) {
                    break;
                }
            }
            Ok(value)
        }),
        Skeleton::Divide { conquer, .. } => each(&|item| solve(conquer.0, &item)),
    }
}

/// The solution of a problem.
///
/// # Errors
/// What has raised on the way, any of which may show.
pub fn solve(conquer: u32, problem: &Data) -> Outcome {
    if is_base(problem) {
        return Ok(problem.clone());
    }
    let parts = divide(problem);
    let solutions = parts.iter().map(|part| solve(conquer, part));
    one(call(conquer, &Data::List(all(solutions)?)))
}

fn one<T>(result: Result<T, Raised>) -> Result<T, Vec<Raised>> {
    result.map_err(|raised| vec![raised])
}

/// The values of all, or the exceptions of all.
fn all(outcomes: impl IntoIterator<Item = Outcome>) -> Result<Vec<Data>, Vec<Raised>> {
    let (mut values, mut exceptions, mut has_failed) = (Vec::new(), Vec::new(), false);
    for outcome in outcomes {
        match outcome {
            Ok(value) => values.push(value),
            Err(raised) => {
                has_failed = true;
                exceptions.extend(raised);
            }
        }
    }
    match has_failed {
        false => Ok(values),
        true => Err(exceptions),
    }
}
