//! `libexoskel`: arrays between parallel programs, for C and Fortran. `include/exoskel.h` says what each function does.
//!
//! Has `unsafe` code: C hands over pointers. Each function says in the header what it takes; a null pointer is an error, not a crash.
#![allow(unsafe_code, reason = "C hands over pointers")]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use exoskel_member::{Member, OwnMemory, SharedArray, keeper_of_environment};
use exoskel_redist::{
    AxisSharing, DIMENSIONS_MAX, ElementType, IndexSet, IndexSets, Layout, LayoutError, MemoryOrder,
};

/// A member and its arrays, which go with it.
pub struct CMember {
    member: Member,
    /// Each came from a box, and is freed with the member only.
    arrays: Vec<*mut CArray>,
}

impl Drop for CMember {
    fn drop(&mut self) {
        for array in self.arrays.drain(..) {
            // SAFETY: it came from a box in `describe`, and is freed nowhere else.
            drop(unsafe { Box::from_raw(array) });
        }
    }
}

/// An array and what is being done with it.
pub struct CArray {
    array: SharedArray,
    rank: u32,
    access: Access,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    None,
    Write,
    Read,
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// Remembers an error, and says that there was one.
fn checked<Done>(run: impl FnOnce() -> Result<Done, String>) -> Option<Done> {
    // A panic must not go through frames of C.
    let done = catch_unwind(AssertUnwindSafe(run));
    let error = match done {
        Ok(Ok(done)) => return Some(done),
        Ok(Err(error)) => error,
        Err(_) => "a fault in libexoskel, which it has printed".to_owned(),
    };
    let text = CString::new(error.replace('\0', " ")).unwrap_or_default();
    LAST_ERROR.with(|last| *last.borrow_mut() = text);
    None
}

fn code(done: Option<()>) -> c_int {
    match done {
        Some(()) => 0,
        None => -1,
    }
}

/// # Safety
/// The pointer is null, or a text that ends with a zero byte.
unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, String> {
    if pointer.is_null() {
        return Err(format!("got NULL for {what}, expected a text"));
    }
    // SAFETY: the caller's.
    let text = unsafe { CStr::from_ptr(pointer) };
    text.to_str()
        .map_err(|_| format!("got a {what} that is not UTF-8"))
}

/// # Safety
/// The pointer is null, or to so many values.
unsafe fn values<'a, Value>(
    pointer: *const Value,
    count: usize,
    what: &str,
) -> Result<&'a [Value], String> {
    if pointer.is_null() {
        return Err(format!("got NULL for {what}, expected {count} numbers"));
    }
    // SAFETY: the caller's.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// # Safety
/// The pointer is null, or one that this library has given out and not taken back.
unsafe fn given<'a, Given>(pointer: *mut Given, what: &str) -> Result<&'a mut Given, String> {
    // SAFETY: the caller's.
    unsafe { pointer.as_mut() }.ok_or_else(|| format!("got NULL, expected {what}"))
}

fn element(kind: c_int) -> Result<ElementType, String> {
    let word = match kind {
        1 => "i1",
        2 => "i2",
        3 => "i4",
        4 => "i8",
        5 => "u1",
        6 => "u2",
        7 => "u4",
        8 => "u8",
        9 => "f4",
        10 => "f8",
        11 => "c8",
        12 => "c16",
        _ => {
            return Err(format!(
                "got the type {kind}, expected one of exoskel_type, 1 to 12"
            ));
        }
    };
    word.parse()
        .map_err(|error: exoskel_redist::ElementError| error.to_string())
}

/// Attaches a process of a program.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_attach(
    program: *const c_char,
    size: c_int,
    rank: c_int,
    member: *mut *mut CMember,
) -> c_int {
    code(checked(|| {
        // SAFETY: the caller's.
        let (program, place) = unsafe { (text(program, "program")?, given(member, "a place")?) };
        *place = ptr::null_mut();
        let number = |number: c_int, what: &str| {
            u32::try_from(number)
                .map_err(|_| format!("got the {what} {number}, expected none below 0"))
        };
        let (rank, size) = (number(rank, "rank")?, number(size, "size")?);
        let member = Member::attach(&keeper_of_environment(), program, rank, size, &|| false);
        let member = member.map_err(|error| error.to_string())?;
        let arrays = Vec::new();
        *place = Box::into_raw(Box::new(CMember { member, arrays }));
        Ok(())
    }))
}

/// What C says of an array, before any of it is looked at.
struct ArrayArguments {
    member: *mut CMember,
    name: *const c_char,
    kind: c_int,
    order: c_int,
    axes: c_int,
    shape: *const i64,
    sharing: *const c_char,
    grid: *const c_int,
    halo: *const i64,
    /// This process's indices on each axis, and how many; null where no axis has index sets.
    counts: *const i64,
    indices: *const *const i64,
    /// This process's part, in the caller's memory; null: shared memory.
    memory: *mut c_void,
    array: *mut *mut CArray,
}

/// Describes an array.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_array_of(
    member: *mut CMember,
    name: *const c_char,
    kind: c_int,
    order: c_int,
    axes: c_int,
    shape: *const i64,
    sharing: *const c_char,
    grid: *const c_int,
    halo: *const i64,
    array: *mut *mut CArray,
) -> c_int {
    let arguments = ArrayArguments {
        member,
        name,
        kind,
        order,
        axes,
        shape,
        sharing,
        grid,
        halo,
        counts: ptr::null(),
        indices: ptr::null(),
        memory: ptr::null_mut(),
        array,
    };
    // SAFETY: the caller's.
    code(checked(|| unsafe { describe(&arguments) }))
}

/// Describes an array whose contents are in the caller's memory.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_array_in(
    member: *mut CMember,
    name: *const c_char,
    kind: c_int,
    order: c_int,
    axes: c_int,
    shape: *const i64,
    sharing: *const c_char,
    grid: *const c_int,
    halo: *const i64,
    memory: *mut c_void,
    array: *mut *mut CArray,
) -> c_int {
    let arguments = ArrayArguments {
        member,
        name,
        kind,
        order,
        axes,
        shape,
        sharing,
        grid,
        halo,
        counts: ptr::null(),
        indices: ptr::null(),
        memory,
        array,
    };
    code(checked(|| {
        if memory.is_null() {
            return Err("got NULL for memory, expected the array's part".to_owned());
        }
        // SAFETY: the caller's.
        unsafe { describe(&arguments) }
    }))
}

/// Describes an array of which axes have index sets, in the caller's memory if that isn't null.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_array_indices(
    member: *mut CMember,
    name: *const c_char,
    kind: c_int,
    order: c_int,
    axes: c_int,
    shape: *const i64,
    sharing: *const c_char,
    grid: *const c_int,
    counts: *const i64,
    indices: *const *const i64,
    memory: *mut c_void,
    array: *mut *mut CArray,
) -> c_int {
    let arguments = ArrayArguments {
        member,
        name,
        kind,
        order,
        axes,
        shape,
        sharing,
        grid,
        halo: ptr::null(),
        counts,
        indices,
        memory,
        array,
    };
    // SAFETY: the caller's.
    code(checked(|| unsafe { describe(&arguments) }))
}

/// # Safety
/// As the header says of the functions that describe arrays.
unsafe fn describe(arguments: &ArrayArguments) -> Result<(), String> {
    // SAFETY: the caller's.
    let (member, place) = unsafe {
        let member = given(arguments.member, "a member")?;
        (member, given(arguments.array, "a place")?)
    };
    *place = ptr::null_mut();
    let axes = arguments.axes;
    let count = usize::try_from(axes)
        .ok()
        .filter(|count| (1..=DIMENSIONS_MAX).contains(count))
        .ok_or_else(|| format!("got {axes} axes, expected 1 to {DIMENSIONS_MAX}"))?;
    // SAFETY: the caller's.
    let (name, sharing, shape) = unsafe {
        let shape = values(arguments.shape, count, "shape")?;
        let sharing = text(arguments.sharing, "sharing")?;
        (text(arguments.name, "name")?, sharing, shape)
    };
    // SAFETY: the caller's.
    let (words, own) = unsafe { shared_out(arguments, sharing, count)? };
    let size = member.member.size();
    let grid = match arguments.grid.is_null() {
        true => Layout::grid_of(&words, size).map_err(|error| error.to_string())?,
        false => {
            // SAFETY: the caller's.
            let grid = unsafe { values(arguments.grid, count, "grid")? };
            let counts = grid.iter().map(|count| u32::try_from(*count));
            let counts: Result<Vec<u32>, _> = counts.collect();
            counts.map_err(|_| format!("got {grid:?} for grid, expected no number below 0"))?
        }
    };
    let halo = match arguments.halo.is_null() {
        true => vec![0; count],
        // SAFETY: the caller's.
        false => none_below_0(unsafe { values(arguments.halo, count, "halo")? }, "halo")?,
    };
    let order = match arguments.order {
        0 => MemoryOrder::C,
        1 => MemoryOrder::Fortran,
        order => {
            return Err(format!(
                "got the order {order}, expected one of exoskel_order"
            ));
        }
    };
    let shape = none_below_0(shape, "shape")?;
    let element = element(arguments.kind)?;
    let layout = Layout::new(&shape, element, words, &grid, &halo, order);
    let mut layout = layout.map_err(|error| error.to_string())?;
    if layout.processes() != size {
        return Err(format!(
            "got a layout for {} processes, the program has {size}",
            layout.processes()
        ));
    }
    let coordinates = layout.coordinates(member.member.rank());
    for (axis, set) in own {
        let sets = IndexSets::of_some(BTreeMap::from([(coordinates[axis], set)]));
        let made = layout.with_index_sets(axis, sets);
        layout = made.map_err(|error| error.to_string())?;
    }
    let rank = member.member.rank();
    let made = match arguments.memory.is_null() {
        true => member.member.array(name, &layout, &|| false),
        false => {
            let cells: u64 = layout.local_shape(rank).iter().product();
            let bytes = cells * u64::from(layout.element().bytes());
            // SAFETY: the caller's: the memory has the whole part, and stays as long as the member does.
            let own = unsafe { OwnMemory::new(arguments.memory.cast(), bytes as usize, true) };
            member.member.array_in(name, &layout, own, &|| false)
        }
    };
    let array = made.map_err(|error| error.to_string())?;
    let made = Box::into_raw(Box::new(CArray {
        array,
        rank,
        access: Access::None,
    }));
    member.arrays.push(made);
    *place = made;
    Ok(())
}

fn none_below_0(numbers: &[i64], what: &str) -> Result<Vec<u64>, String> {
    let wrong = || format!("got {numbers:?} for {what}, expected no number below 0");
    let converted = numbers.iter().map(|number| u64::try_from(*number));
    let converted: Result<Vec<u64>, _> = converted.collect();
    converted.map_err(|_| wrong())
}

/// This process's indices, by the numbers of axes.
type SetsOfProcess = Vec<(usize, IndexSet)>;

/// How each axis is shared out, and this process's indices where that is by index sets.
///
/// # Safety
/// As the header says of `exoskel_array_indices`.
unsafe fn shared_out(
    arguments: &ArrayArguments,
    sharing: &str,
    axes: usize,
) -> Result<(Vec<AxisSharing>, SetsOfProcess), String> {
    let (mut words, mut own) = (Vec::new(), Vec::new());
    for (axis, word) in sharing.split(',').map(str::trim).enumerate() {
        if word != "indices" {
            let word: Result<AxisSharing, LayoutError> = word.parse();
            words.push(word.map_err(|error| error.to_string())?);
            continue;
        }
        if arguments.indices.is_null() || arguments.counts.is_null() || axis >= axes {
            return Err(format!(
                "got \"indices\" for axis {axis}, and no indices: call exoskel_array_indices with this process's"
            ));
        }
        // SAFETY: the caller's: both have a place for each axis.
        let (count, first) = unsafe { (*arguments.counts.add(axis), *arguments.indices.add(axis)) };
        let what = format!("the indices on axis {axis}");
        let count = usize::try_from(count)
            .map_err(|_| format!("got {count} for the number of {what}, expected none below 0"))?;
        let indices = match count {
            0 => &[],
            // SAFETY: the caller's.
            _ => unsafe { values(first, count, &what)? },
        };
        if let Some(index) = indices.iter().find(|index| **index < 0) {
            return Err(format!(
                "got the index {index} in {what}, expected none below 0: they count from 0"
            ));
        }
        let set = IndexSet::new(indices.iter().map(|index| index.unsigned_abs()));
        own.push((axis, set.map_err(|error| format!("{what}: {error}"))?));
        words.push(AxisSharing::Indices(IndexSets::default()));
    }
    Ok((words, own))
}

/// The lengths of this process's part.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_local_shape(array: *mut CArray, shape: *mut i64) -> c_int {
    code(checked(|| {
        // SAFETY: the caller's.
        let array = unsafe { given(array, "an array")? };
        if shape.is_null() {
            return Err("got NULL for shape, expected a place for each axis".to_owned());
        }
        let lengths = array.array.layout().local_shape(array.rank);
        for (axis, length) in lengths.into_iter().enumerate() {
            // SAFETY: the caller's: there is a place for each axis.
            unsafe { shape.add(axis).write(length as i64) };
        }
        Ok(())
    }))
}

/// What this process owns on an axis.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_extent(
    array: *mut CArray,
    axis: c_int,
    first: *mut i64,
    count: *mut i64,
) -> c_int {
    code(checked(|| {
        // SAFETY: the caller's.
        let (array, first, count) = unsafe {
            let places = (given(first, "a place")?, given(count, "a place")?);
            (given(array, "an array")?, places.0, places.1)
        };
        let layout = array.array.layout();
        let axis = usize::try_from(axis)
            .ok()
            .filter(|axis| *axis < layout.shape().len())
            .ok_or_else(|| format!("got the axis {axis}, expected one of the array's"))?;
        let extents = layout.extents(array.rank, axis);
        let extent = extents.first().cloned().unwrap_or(0..0);
        *first = extent.start as i64;
        *count = (extent.end - extent.start) as i64;
        Ok(())
    }))
}

fn begin(array: *mut CArray, access: Access) -> *mut c_void {
    let begun = checked(|| {
        // SAFETY: the caller's, as the header says.
        let array = unsafe { given(array, "an array")? };
        if array.access != Access::None {
            return Err("the array is in use already: call exoskel_done first".to_owned());
        }
        let begun = match access {
            Access::Write => array.array.begin_write(&|| false),
            _ => array.array.begin_read(&|| false).map(|_| ()),
        };
        begun.map_err(|error| error.to_string())?;
        array.access = access;
        Ok(array.array.first_byte().cast())
    });
    begun.unwrap_or(ptr::null_mut())
}

/// Waits until the array can be written.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_write(array: *mut CArray) -> *mut c_void {
    begin(array, Access::Write)
}

/// Waits for the next version.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_read(array: *mut CArray) -> *const c_void {
    begin(array, Access::Read)
}

/// Ends a write or a read.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_done(array: *mut CArray) -> c_int {
    code(checked(|| {
        // SAFETY: the caller's.
        let array = unsafe { given(array, "an array")? };
        match std::mem::replace(&mut array.access, Access::None) {
            Access::None => Err("the array is neither written nor read".to_owned()),
            Access::Read => {
                array.array.end_read();
                Ok(())
            }
            Access::Write => {
                let exported = array.array.export(&|| false);
                exported.map(|_| ()).map_err(|error| error.to_string())
            }
        }
    }))
}

/// Leaves, and frees the member and its arrays.
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exoskel_leave(member: *mut CMember, error: *const c_char) -> c_int {
    code(checked(|| {
        if member.is_null() {
            return Err("got NULL, expected a member".to_owned());
        }
        // SAFETY: the caller's: it came from `exoskel_attach`, and is not used any more.
        let member = unsafe { Box::from_raw(member) };
        let error = match error.is_null() {
            true => None,
            // SAFETY: the caller's.
            false => Some(unsafe { text(error, "error")? }.to_owned()),
        };
        let left = member.member.leave(error);
        left.map_err(|error| error.to_string())
    }))
}

/// The library's version.
#[unsafe(no_mangle)]
pub extern "C" fn exoskel_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// What the last error was.
#[unsafe(no_mangle)]
pub extern "C" fn exoskel_error() -> *const c_char {
    LAST_ERROR.with(|last| last.borrow().as_ptr())
}
