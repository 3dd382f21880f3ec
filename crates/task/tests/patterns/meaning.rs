//! Programs over small values, and what they mean: one item after the other.

use bytes::Bytes;
use exoskel_flow::{FunctionId, Skeleton};

/// A number or a list, and whether a stranger has touched it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    pub(crate) data: Data,
    pub(crate) touched: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Number(u64),
    List(Vec<Self>),
}

impl Value {
    /// The body of its record, and its bulk parts: some have none, some one, some two.
    pub(crate) fn write(&self) -> (Vec<u8>, Vec<Bytes>) {
        let mut body = vec![u8::from(self.touched)];
        self.data.write(&mut body);
        let mut bulk = Vec::new();
        for _ in 0..self.data.sum() % 3 {
            let at = 1 + body[1..].len() / 2;
            bulk.insert(0, Bytes::from(body.split_off(at)));
        }
        (body, bulk)
    }

    pub(crate) fn read(body: &[u8], bulk: &[Vec<u8>]) -> Self {
        let bytes = [body, &bulk.concat()].concat();
        let mut rest = &bytes[1..];
        let data = Data::read(&mut rest);
        assert!(rest.is_empty());
        Self {
            data,
            touched: bytes[0] != 0,
        }
    }
}

impl Data {
    fn write(&self, out: &mut Vec<u8>) {
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

    fn read(bytes: &mut &[u8]) -> Self {
        let (kind, number) = (
            bytes[0],
            u64::from_be_bytes(bytes[1..9].try_into().unwrap()),
        );
        *bytes = &bytes[9..];
        match kind {
            0 => Self::Number(number),
            _ => Self::List((0..number).map(|_| Self::read(bytes)).collect()),
        }
    }

    fn sum(&self) -> u64 {
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
pub(crate) struct Raised;

/// Functions from this one on raise now and then.
pub(crate) const RAISING: u32 = 100;

/// The function of this number.
pub(crate) fn call(function: u32, value: &Data) -> Result<Data, Raised> {
    let sum = value.sum();
    if function >= RAISING && sum % 13 == 5 {
        return Err(Raised);
    }
    Ok(Data::Number((sum * 7 + u64::from(function)) % 10_007))
}

pub(crate) fn split(function: Option<u32>, value: &Data) -> Result<Vec<Data>, Raised> {
    let Some(function) = function else {
        return Ok(value.clone().members());
    };
    let Data::Number(number) = call(function, value)? else {
        return Err(Raised);
    };
    Ok((0..number % 5)
        .map(|part| Data::Number(number + part))
        .collect())
}

pub(crate) fn join(function: Option<u32>, results: Vec<Data>) -> Result<Data, Raised> {
    let list = Data::List(results);
    function.map_or_else(|| Ok(list.clone()), |function| call(function, &list))
}

/// Associative, and not commutative.
pub(crate) fn operator(first: Data, second: Data) -> Data {
    let mut members = first.members();
    members.extend(second.members());
    Data::List(members)
}

pub(crate) fn until(function: u32, value: &Data) -> bool {
    (value.sum() + u64::from(function)).is_multiple_of(3)
}

pub(crate) fn is_base(value: &Data) -> bool {
    value.sum() < 20
}

pub(crate) fn divide(value: &Data) -> Vec<Data> {
    let sum = value.sum() % 300;
    let part = |part| Data::Number((sum / 2).saturating_sub(part));
    (0..sum % 3 + 1).map(part).collect()
}

/// What an item that is fed back comes to: whether it goes in again or is a result, for each. What goes in again is smaller.
pub(crate) fn fed_back(function: u32, value: &Data) -> Result<Vec<(bool, Data)>, Raised> {
    let Data::Number(mixed) = call(function, value)? else {
        return Err(Raised);
    };
    let size = value.sum() % 300;
    let entry = |part: u64| {
        let goes_in_again = size > 3 && !(mixed + part).is_multiple_of(3);
        let number = (size / 2).saturating_sub(part);
        (goes_in_again, Data::Number(number))
    };
    Ok((0..=size % 3).map(entry).collect())
}

/// All results of an item that is fed back.
pub(crate) fn results(function: u32, value: &Data) -> Result<Vec<Data>, Raised> {
    let mut all = Vec::new();
    for (goes_in_again, data) in fed_back(function, value)? {
        if goes_in_again {
            all.extend(results(function, &data)?);
        } else {
            all.push(data);
        }
    }
    Ok(all)
}

/// The initial value of a reduction, in the table of functions.
pub(crate) fn initial() -> Data {
    Data::Number(4711)
}

/// What each item comes to, of all items in front of this skeleton.
pub(crate) fn run(
    skeleton: &Skeleton,
    items: Vec<Result<Data, Raised>>,
) -> Vec<Result<Data, Raised>> {
    let each = |work: &dyn Fn(Data) -> Result<Data, Raised>| {
        let items = items.iter().cloned();
        items.map(|item| item.and_then(work)).collect()
    };
    match skeleton {
        Skeleton::Seq(FunctionId(function)) => each(&|item| call(*function, &item)),
        Skeleton::Farm(inner) => run(inner, items),
        Skeleton::Pipeline(stages) => stages.iter().fold(items, |items, stage| run(stage, items)),
        Skeleton::FlatMap(FunctionId(function)) => {
            let parts = |item: Result<Data, Raised>| match item
                .and_then(|item| split(Some(*function), &item))
            {
                Ok(parts) => parts.into_iter().map(Ok).collect(),
                Err(raised) => vec![Err(raised)],
            };
            items.into_iter().flat_map(parts).collect()
        }
        Skeleton::Feedback(FunctionId(function)) => {
            let all = |item: Result<Data, Raised>| match item
                .and_then(|item| results(*function, &item))
            {
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
            let parts = split(number(splits), &item)?;
            let results = run(worker, parts.into_iter().map(Ok).collect());
            join(
                number(joins),
                results.into_iter().collect::<Result<_, _>>()?,
            )
        }),
        Skeleton::Reduce { initial: first, .. } => {
            let all: Result<Vec<Data>, Raised> = items.into_iter().collect();
            let folded = all.and_then(|all| {
                let first = first.map(|_| initial());
                first.into_iter().chain(all).reduce(operator).ok_or(Raised)
            });
            vec![folded]
        }
        Skeleton::Iterate {
            body,
            until: FunctionId(function),
            at_most,
        } => each(&|item| {
            let mut value = item;
            for round in 1.. {
                value = run(body, vec![Ok(value)]).pop().ok_or(Raised)??;
                if until(*function, &value) || *at_most == Some(round) {
                    break;
                }
            }
            Ok(value)
        }),
        Skeleton::Divide { conquer, .. } => each(&|item| solve(conquer.0, &item)),
    }
}

pub(crate) fn solve(conquer: u32, problem: &Data) -> Result<Data, Raised> {
    if is_base(problem) {
        return Ok(problem.clone());
    }
    let parts = divide(problem);
    let solutions: Result<_, _> = parts.iter().map(|part| solve(conquer, part)).collect();
    call(conquer, &Data::List(solutions?))
}
