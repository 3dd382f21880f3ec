//! A look at a stranger's pickle before anything of it is made: only opcodes that our own pickler writes, and no
//! deeper nesting than the interpreter survives.
//!
//! The restricted unpickler decides which names a pickle may call. It can't keep a million tuples inside each other
//! from overflowing the stack when they are hashed, nor a million slices or deques when they are freed: CPython checks
//! the depth of neither. Legitimate pickles never get that deep, since the pickler itself recurses and has a limit.

/// What lies deeper than this is refused. CPython's pickler stops at a tenth of it; its stack lasts for ten times.
const NESTING_MAX: u32 = 10_000;

/// In a pickle with cycles, depth can't be told before all is read; then there may be this many objects in it that
/// hold others.
const HOLDERS_MAX_WITH_CYCLES: usize = 50_000;

/// Why a pickle is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ShapeError {
    /// Objects within objects, too many.
    #[error("got a pickle nested deeper than {NESTING_MAX} levels")]
    Nesting,
    /// Too many objects to be sure.
    #[error(
        "got a pickle with cycles and more than {HOLDERS_MAX_WITH_CYCLES} objects that hold others, expected fewer, or no cycles"
    )]
    Cycles,
    /// An opcode that no pickler of protocol 5 writes.
    #[error("got the pickle opcode {0:#04x}, expected those that protocol 5 writes")]
    Opcode(u8),
    /// It ends before its STOP, or takes from an empty stack.
    #[error("got a pickle that is cut or malformed")]
    Malformed,
    /// It changes an object after it was finished, which would hide how deep others are.
    #[error("got a pickle that changes a finished object")]
    Changed,
}

/// Checks the shape of a pickle.
///
/// # Errors
/// [`ShapeError`] says what is wrong.
///
/// # Security
/// Says nothing about the names in it: that is the restricted unpickler's work.
pub(crate) fn check(pickle: &[u8]) -> Result<(), ShapeError> {
    // Each level takes a byte at least.
    if pickle.len() <= NESTING_MAX as usize {
        return Ok(());
    }
    let (stack, marks, memo) = (Vec::new(), Vec::new(), Vec::new());
    Scan {
        rest: pickle,
        stack,
        marks,
        memo,
        holders: 0,
        cycles: false,
    }
    .run()
}

/// What is known of an object on the unpickler's stack.
#[derive(Clone, Copy)]
struct Object {
    depth: u32,
    /// Whether something can still be put into it: not into text, tuples, names, nor into what comes from the memo.
    open: bool,
    /// Where it stands in the memo.
    memo: Option<usize>,
    fetched: bool,
}

impl Object {
    const fn new(depth: u32, open: bool) -> Self {
        Self {
            depth,
            open,
            memo: None,
            fetched: false,
        }
    }
}

const LEAF: Object = Object::new(1, false);
const EMPTY: Object = Object::new(1, true);

/// What is known of an object in the memo.
#[derive(Clone, Copy)]
struct Memoized {
    depth: u32,
    /// Whether it stands on the stack and can still be filled: who refers to it now may make a cycle.
    open: bool,
}

struct Scan<'a> {
    rest: &'a [u8],
    stack: Vec<Object>,
    marks: Vec<usize>,
    memo: Vec<Memoized>,
    holders: usize,
    cycles: bool,
}

impl Scan<'_> {
    fn run(mut self) -> Result<(), ShapeError> {
        loop {
            match self.take::<1>()?[0] {
                b'.' => {
                    return if self.stack.is_empty() {
                        Err(ShapeError::Malformed)
                    } else {
                        Ok(())
                    };
                }
                0x80 => self.skip(1)?,                     // PROTO
                0x95 => self.skip(8)?,                     // FRAME
                b'(' => self.marks.push(self.stack.len()), // MARK
                b'N' | 0x88 | 0x89 | b')' | 0x97 => self.stack.push(LEAF), // None, booleans, EMPTY_TUPLE, NEXT_BUFFER
                b']' | b'}' | 0x8f => self.stack.push(EMPTY), // EMPTY_LIST, EMPTY_DICT, EMPTY_SET
                0x98 => {}                                    // READONLY_BUFFER
                b'K' => self.leaf(1)?,                        // BININT1
                b'M' => self.leaf(2)?,                        // BININT2
                b'J' => self.leaf(4)?,                        // BININT
                b'G' => self.leaf(8)?,                        // BINFLOAT
                0x8a | 0x8c | b'C' => self.sized::<1>()?, // LONG1, SHORT_BINUNICODE, SHORT_BINBYTES
                0x8b | b'X' | b'B' => self.sized::<4>()?, // LONG4, BINUNICODE, BINBYTES
                0x8d | 0x8e | 0x96 => self.sized::<8>()?, // BINUNICODE8, BINBYTES8, BYTEARRAY8
                0x85 => self.hold(1, false)?,             // TUPLE1
                0x86 | 0x93 => self.hold(2, false)?,      // TUPLE2, STACK_GLOBAL
                0x87 => self.hold(3, false)?,             // TUPLE3
                // Made of their arguments, and perhaps filled later.
                b'R' | 0x81 => self.hold(2, true)?, // REDUCE, NEWOBJ
                0x92 => self.hold(3, true)?,        // NEWOBJ_EX
                b't' | 0x91 => {
                    // TUPLE, FROZENSET
                    let count = self.since_mark()?;
                    self.hold(count, false)?;
                }
                b'a' => self.put_into(1)?, // APPEND
                b'b' => self.put_into(1)?, // BUILD
                b's' => self.put_into(2)?, // SETITEM
                b'e' | b'u' | 0x90 => {
                    // APPENDS, SETITEMS, ADDITEMS
                    let count = self.since_mark()?;
                    self.put_into(count)?;
                }
                b'0' => {
                    // POP
                    self.pop()?;
                }
                b'1' => {
                    // POP_MARK
                    let count = self.since_mark()?;
                    for _ in 0..count {
                        self.pop()?;
                    }
                }
                0x94 => self.memoize()?, // MEMOIZE
                b'h' => {
                    // BINGET
                    let index = self.take::<1>()?[0];
                    self.fetch(usize::from(index))?;
                }
                b'j' => {
                    // LONG_BINGET
                    let index = u32::from_le_bytes(self.take()?);
                    self.fetch(index as usize)?;
                }
                other => return Err(ShapeError::Opcode(other)),
            }
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ShapeError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(ShapeError::Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn skip(&mut self, count: usize) -> Result<(), ShapeError> {
        self.rest = self.rest.get(count..).ok_or(ShapeError::Malformed)?;
        Ok(())
    }

    fn leaf(&mut self, bytes: usize) -> Result<(), ShapeError> {
        self.skip(bytes)?;
        self.stack.push(LEAF);
        Ok(())
    }

    /// A leaf behind its length, a little-endian number of `N` bytes.
    fn sized<const N: usize>(&mut self) -> Result<(), ShapeError> {
        let mut length = [0; 8];
        length[..N].copy_from_slice(&self.take::<N>()?);
        let length =
            usize::try_from(u64::from_le_bytes(length)).map_err(|_| ShapeError::Malformed)?;
        self.leaf(length)
    }

    fn pop(&mut self) -> Result<Object, ShapeError> {
        // What lies below the newest mark is not to be had, as in the unpickler.
        if self
            .marks
            .last()
            .is_some_and(|mark| self.stack.len() <= *mark)
        {
            return Err(ShapeError::Malformed);
        }
        let object = self.stack.pop().ok_or(ShapeError::Malformed)?;
        if let Some(index) = object.memo {
            self.memo[index] = Memoized {
                depth: object.depth,
                open: false,
            };
        }
        Ok(object)
    }

    fn since_mark(&mut self) -> Result<usize, ShapeError> {
        let mark = self.marks.pop().ok_or(ShapeError::Malformed)?;
        self.stack
            .len()
            .checked_sub(mark)
            .ok_or(ShapeError::Malformed)
    }

    /// The depth of what holds the newest `count` objects, which are taken.
    fn depth_above(&mut self, count: usize) -> Result<u32, ShapeError> {
        let mut depth = 1;
        for _ in 0..count {
            depth = depth.max(self.pop()?.depth + 1);
        }
        if depth > NESTING_MAX {
            Err(ShapeError::Nesting)
        } else {
            Ok(depth)
        }
    }

    fn hold(&mut self, count: usize, open: bool) -> Result<(), ShapeError> {
        let depth = self.depth_above(count)?;
        self.stack.push(Object::new(depth, open));
        self.count_holder()
    }

    fn put_into(&mut self, count: usize) -> Result<(), ShapeError> {
        let depth = self.depth_above(count)?;
        let target = self.stack.last_mut().ok_or(ShapeError::Malformed)?;
        if !target.open {
            return Err(ShapeError::Changed);
        }
        target.depth = target.depth.max(depth);
        self.count_holder()
    }

    fn memoize(&mut self) -> Result<(), ShapeError> {
        let index = self.memo.len();
        let object = self.stack.last_mut().ok_or(ShapeError::Malformed)?;
        // Under a second number its depth would not be kept up to date.
        if object.fetched || object.memo.is_some() {
            return Err(ShapeError::Changed);
        }
        object.memo = Some(index);
        self.memo.push(Memoized {
            depth: object.depth,
            open: object.open,
        });
        Ok(())
    }

    fn fetch(&mut self, index: usize) -> Result<(), ShapeError> {
        let memoized = *self.memo.get(index).ok_or(ShapeError::Malformed)?;
        self.cycles |= memoized.open;
        self.stack.push(Object {
            fetched: true,
            ..Object::new(memoized.depth, false)
        });
        self.check_holders()
    }

    fn count_holder(&mut self) -> Result<(), ShapeError> {
        self.holders += 1;
        self.check_holders()
    }

    fn check_holders(&self) -> Result<(), ShapeError> {
        if self.cycles && self.holders > HOLDERS_MAX_WITH_CYCLES {
            Err(ShapeError::Cycles)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Aim: chains of any kind are refused at the limit, the same number of objects side by side is not. Method: the
    /// opcodes by hand, since no pickler writes them.
    fn chain(start: &[u8], link: &[u8], links: usize) -> Vec<u8> {
        let mut pickle = b"\x80\x05".to_vec();
        pickle.extend_from_slice(start);
        for _ in 0..links {
            pickle.extend_from_slice(link);
        }
        pickle.push(b'.');
        pickle
    }

    #[test]
    fn deep_chains_are_refused() {
        for link in [b"\x85".as_slice(), b"N\x86", b"NN\x87", b"\x85\x94"] {
            assert_eq!(
                check(&chain(b"N", link, 100_000)),
                Err(ShapeError::Nesting),
                "{link:?}"
            );
        }
        // Slices: a name from the memo, called with the one before.
        let mut slices = b"\x80\x05\x8c\x08builtins\x8c\x05slice\x93\x94".to_vec();
        slices.extend(std::iter::repeat_n(*b"h\x00", 100_000).flatten());
        slices.push(b'N');
        slices.extend(std::iter::repeat_n(*b"\x85R", 100_000).flatten());
        slices.push(b'.');
        assert_eq!(check(&slices), Err(ShapeError::Nesting));
        // Tuples that are dropped and come back from the memo, so that the stack says nothing.
        let mut tuples = b"\x80\x05N\x94".to_vec();
        for index in 0..50_000_u32 {
            tuples.extend_from_slice(b"0j");
            tuples.extend_from_slice(&index.to_le_bytes());
            tuples.extend_from_slice(b"\x85\x94");
        }
        tuples.push(b'.');
        assert_eq!(check(&tuples), Err(ShapeError::Nesting));
        // Lists in lists, all of them open at once.
        let mut nested = b"\x80\x05".to_vec();
        nested.extend(std::iter::repeat_n(b']', 100_000));
        nested.extend(std::iter::repeat_n(b'a', 99_999));
        nested.push(b'.');
        assert_eq!(check(&nested), Err(ShapeError::Nesting));
    }

    #[test]
    fn wide_pickles_pass() {
        assert_eq!(check(&chain(b"](", b"K\x01\x85\x94", 100_000)[..]), Ok(()));
        let mut wide = chain(b"](", b"K\x01K\x02\x86\x94", 100_000);
        wide.pop();
        wide.extend_from_slice(b"e.");
        assert_eq!(check(&wide), Ok(()));
    }

    #[test]
    fn finished_objects_stay_as_they_are() {
        // A list is memoized, dropped, fetched and appended to.
        let pickle = chain(b"]\x940", b"h\x00Na0", 5_000);
        assert_eq!(check(&pickle), Err(ShapeError::Changed));
        // Or given a second number while it is open.
        let pickle = chain(b"]\x94", b"h\x00\x940", 5_000);
        assert_eq!(check(&pickle), Err(ShapeError::Changed));
    }

    #[test]
    fn chains_through_open_objects_are_bounded_by_their_number() {
        // X and Y open; Y holds X; Y is finished; X takes an earlier Y; all of it again.
        let mut pickle = b"\x80\x05(]\x94".to_vec();
        for round in 0..60_000_u32 {
            let x = 1 + 2 * round;
            pickle.extend_from_slice(b"]\x94]\x94j");
            pickle.extend_from_slice(&x.to_le_bytes());
            pickle.extend_from_slice(b"a0j");
            pickle.extend_from_slice(&(x - 1).to_le_bytes());
            pickle.extend_from_slice(b"a0");
        }
        pickle.push(b'.');
        assert_eq!(check(&pickle), Err(ShapeError::Cycles));
    }

    #[test]
    fn what_is_cut_or_unknown_is_an_error() {
        let long = vec![b'N'; 20_000];
        assert_eq!(check(&long), Err(ShapeError::Malformed));
        for opcode in *b"cioPQ\x82\x83\x84Ip2dl" {
            let mut pickle = vec![opcode];
            pickle.extend_from_slice(&long);
            assert_eq!(check(&pickle), Err(ShapeError::Opcode(opcode)));
        }
        for start in [
            b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff".as_slice(),
            b"\x85",
            b"a",
            b"t",
            b"0",
            b"(0",
            b"h\x05",
            b"\x94",
        ] {
            let mut pickle = start.to_vec();
            pickle.extend_from_slice(&long);
            assert_eq!(check(&pickle), Err(ShapeError::Malformed), "{start:?}");
        }
    }
}
