//! What skeletons compile to.

use super::*;

fn seq(number: u32) -> Skeleton {
    Skeleton::Seq(FunctionId(number))
}

fn farm(inner: Skeleton) -> Skeleton {
    Skeleton::Farm(Box::new(inner))
}

/// Whether each segment is serial, and its functions.
fn shape(skeleton: &Skeleton) -> Vec<(bool, Vec<u32>)> {
    let program = Program::compile(skeleton).unwrap();
    let segments = program.segments().iter();
    segments
        .map(|s| (s.serial, s.functions.iter().map(|f| f.0).collect()))
        .collect()
}

/// Aim: a serial function is a segment by itself, parallel ones are one together. Method: the shapes of issue and design, written out.
#[test]
fn segments_start_at_serial_functions_and_behind_them() {
    let (serial, parallel) = (true, false);
    assert_eq!(shape(&seq(0)), [(serial, vec![0])]);
    assert_eq!(shape(&farm(seq(0))), [(parallel, vec![0])]);
    assert_eq!(
        shape(&Skeleton::Pipeline(vec![seq(0), farm(seq(1))])),
        [(serial, vec![0]), (parallel, vec![1])]
    );
    assert_eq!(
        shape(&Skeleton::Pipeline(vec![
            farm(seq(0)),
            farm(seq(1)),
            seq(2),
            seq(3),
            farm(seq(4))
        ])),
        [
            (parallel, vec![0, 1]),
            (serial, vec![2]),
            (serial, vec![3]),
            (parallel, vec![4])
        ]
    );
    let nested = farm(Skeleton::Pipeline(vec![seq(0), farm(seq(1)), seq(2)]));
    assert_eq!(shape(&nested), [(parallel, vec![0, 1, 2])]);
}

/// Aim: a frame goes on from a serial segment into a parallel one, and nowhere else.
#[test]
fn a_frame_runs_through_a_serial_segment_and_the_parallel_one_behind() {
    let stages = vec![farm(seq(0)), seq(1), seq(2), farm(seq(3)), seq(4)];
    let program = Program::compile(&Skeleton::Pipeline(stages)).unwrap();
    let furthest: Vec<u16> = (0..6).map(|from| program.furthest(from)).collect();
    assert_eq!(furthest, [0, 1, 3, 3, 4, 5]);
}

/// Aim: bad programs are errors that name the limit, not panics. Method: one program past each limit.
#[test]
fn bad_programs_are_refused() {
    assert_eq!(
        Program::compile(&Skeleton::Pipeline(vec![])),
        Err(ProgramError::EmptyPipeline)
    );
    let deep = (0..SKELETON_DEPTH_MAX).fold(seq(0), |inner, _| farm(inner));
    assert_eq!(Program::compile(&deep), Err(ProgramError::TooDeep));
    let wide = Skeleton::Pipeline(vec![seq(0); PROGRAM_FUNCTIONS_MAX + 1]);
    assert_eq!(Program::compile(&wide), Err(ProgramError::TooManyFunctions));
    let full = Skeleton::Pipeline(vec![seq(0); PROGRAM_FUNCTIONS_MAX]);
    assert_eq!(
        Program::compile(&full).unwrap().segments().len(),
        PROGRAM_FUNCTIONS_MAX
    );
}

/// The line of each segment, its steps, whether it takes lists, and what becomes of its results.
fn steps(skeleton: &Skeleton) -> Vec<(usize, Vec<SegmentStep>, bool, Then)> {
    let program = Program::compile(skeleton).unwrap();
    let lines = program.lines().iter().enumerate();
    let segments = lines.flat_map(|(number, line)| {
        let segments = line.segments.iter();
        segments.map(move |segment| (number, segment.clone()))
    });
    segments
        .map(|(line, segment)| (line, segment.steps, segment.takes_lists, segment.then))
        .collect()
}

fn map(worker: Skeleton) -> Skeleton {
    Skeleton::Map {
        split: Some(FunctionId(8)),
        worker: Box::new(worker),
        join: None,
    }
}

fn iterate(body: Skeleton) -> Skeleton {
    Skeleton::Iterate {
        body: Box::new(body),
        until: FunctionId(9),
        at_most: None,
    }
}

/// Aim: patterns share segments with what stands before and behind them, as far as an item stays where it is.
#[test]
fn patterns_are_segments_of_lines() {
    use SegmentStep::{Call, Combine, Fold, Join, Split, Until};
    let split = Split { calls: true };
    let join = Join { calls: false };
    let away = |line| Then::Expand {
        line,
        join: Some(1),
        after: None,
    };
    let program = Skeleton::Pipeline(vec![farm(seq(0)), map(seq(1)), farm(seq(2))]);
    assert_eq!(
        steps(&program),
        [
            (0, vec![Call, split], false, away(1)),
            (0, vec![join, Call], true, Then::Next),
            (1, vec![Call], false, Then::Next),
        ]
    );
    let flat_map = Skeleton::FlatMap(FunctionId(3));
    let reduce = Skeleton::Reduce {
        operator: FunctionId(4),
        initial: None,
    };
    let program = Skeleton::Pipeline(vec![farm(seq(0)), flat_map, farm(seq(1)), reduce]);
    let (line, join_at, after) = (1, None, None);
    let made = Then::Expand {
        line,
        join: join_at,
        after,
    };
    assert_eq!(
        steps(&program),
        [
            (0, vec![Call, split], false, made),
            (1, vec![Call, Fold], false, Then::Fold),
            (2, vec![Combine], true, Then::Next),
            (3, vec![Combine], true, Then::Next),
        ]
    );
    let again = |from| Then::Repeat {
        from,
        at_most: None,
    };
    let program = Skeleton::Pipeline(vec![farm(seq(0)), iterate(seq(1)), iterate(map(seq(2)))]);
    let expand = Then::Expand {
        line: 1,
        join: Some(3),
        after: None,
    };
    assert_eq!(
        steps(&program),
        [
            (0, vec![Call], false, Then::Next),
            (0, vec![Call, Until], false, again(1)),
            (0, vec![split], false, expand),
            (0, vec![join, Until], true, again(2)),
            (1, vec![Call], false, Then::Next),
        ]
    );
}

/// Aim: what a problem is divided into is divided in the same line.
#[test]
fn problems_are_divided_in_their_own_line() {
    use SegmentStep::{Divide, Resume};
    let [is_base, base, divide, conquer] = [0, 1, 2, 3].map(FunctionId);
    let program = Skeleton::Divide {
        is_base,
        base,
        divide,
        conquer,
    };
    let then = Then::Expand {
        line: 1,
        join: Some(1),
        after: Some(2),
    };
    assert_eq!(
        steps(&program),
        [
            (0, vec![Divide], false, then),
            (0, vec![Resume], true, then),
            (1, vec![Divide], false, then),
            (1, vec![Resume], true, then),
        ]
    );
}

/// Aim: what is fed back runs in a line of its own, and the list of results that it comes to is expanded in the order of the items.
#[test]
fn what_is_fed_back_comes_to_a_list_that_is_expanded() {
    use SegmentStep::{Call, Split};
    let program = Skeleton::Pipeline(vec![
        farm(seq(0)),
        Skeleton::Feedback(FunctionId(1)),
        farm(seq(2)),
    ]);
    let again = |first: u16| Then::Expand {
        line: 1,
        join: Some(first + 1),
        after: Some(first + 2),
    };
    let results = Then::Expand {
        line: 2,
        join: None,
        after: None,
    };
    let split = Split { calls: false };
    assert_eq!(
        steps(&program),
        [
            (0, vec![Call], false, Then::Next),
            (0, vec![SegmentStep::Feedback], false, again(1)),
            (0, vec![SegmentStep::Feedback], true, again(1)),
            (0, vec![split], false, results),
            (1, vec![SegmentStep::Feedback], false, again(0)),
            (1, vec![SegmentStep::Feedback], true, again(0)),
            (2, vec![Call], false, Then::Next),
        ]
    );
}

/// Aim: patterns where they mean nothing are errors in words.
#[test]
fn patterns_have_their_places() {
    let flat_map = || Skeleton::FlatMap(FunctionId(0));
    let reduce = || Skeleton::Reduce {
        operator: FunctionId(0),
        initial: None,
    };
    let error = |skeleton: Skeleton| Program::compile(&skeleton).unwrap_err();
    let feedback = || Skeleton::Feedback(FunctionId(0));
    for inside in [
        map(flat_map()),
        iterate(farm(flat_map())),
        map(feedback()),
        iterate(farm(feedback())),
    ] {
        assert_eq!(error(inside), ProgramError::FlatMapInside);
    }
    let first = Skeleton::Pipeline(vec![reduce(), seq(0)]);
    for early in [map(reduce()), iterate(reduce()), first] {
        assert_eq!(error(early), ProgramError::ReduceNotLast);
    }
    let body = Box::new(seq(0));
    let (until, at_most) = (FunctionId(1), Some(0));
    let never = Skeleton::Iterate {
        body,
        until,
        at_most,
    };
    assert_eq!(error(never), ProgramError::NoRound);
    let good = Skeleton::Pipeline(vec![farm(flat_map()), farm(flat_map()), farm(reduce())]);
    assert!(Program::compile(&good).is_ok());
}

/// Aim: what is nearest to the end of a program comes first. Method: two Maps, one of them inside the other, behind each other in a pipeline that folds.
#[test]
fn what_is_nearest_to_the_end_comes_first() {
    let map = |number, worker| Skeleton::Map {
        split: Some(FunctionId(number)),
        worker: Box::new(worker),
        join: Some(FunctionId(number + 1)),
    };
    let order = |skeleton: &Skeleton| -> Vec<_> {
        let order = Program::compile(skeleton).unwrap().order();
        let ranges = order.into_iter();
        ranges
            .map(|SegmentRange { line, segments }| (line, segments.start, segments.end))
            .collect()
    };
    assert_eq!(order(&farm(seq(0))), [(0, 0, 1)]);
    let one = map(0, seq(2));
    assert_eq!(order(&one), [(0, 1, 2), (1, 0, 1), (0, 0, 1)]);
    let nested = map(3, one.clone());
    assert_eq!(
        order(&nested),
        [(0, 1, 2), (1, 1, 2), (2, 0, 1), (1, 0, 1), (0, 0, 1)]
    );
    let reduced = Skeleton::Pipeline(vec![
        Skeleton::FlatMap(FunctionId(7)),
        one,
        Skeleton::Reduce {
            operator: FunctionId(8),
            initial: None,
        },
    ]);
    let program = Program::compile(&reduced).unwrap();
    let order = order(&reduced);
    // Every segment has its place, once.
    let mut places: Vec<_> = order
        .iter()
        .flat_map(|(line, start, end)| (*start..*end).map(|segment| (*line, segment)))
        .collect();
    places.sort_unstable();
    let all = (0u16..).zip(program.lines());
    let all = all.flat_map(|(line, known)| (0..known.segments.len()).map(move |at| (line, at)));
    assert_eq!(places, all.collect::<Vec<_>>());
    assert_eq!(order.last(), Some(&(0, 0, 1)), "new items come last");
}
