//! All orders in which two sides can use a ring, as the memory model allows them: no byte is lost, changed or read too early, and nobody
//! sleeps for ever. The model checker fails a run in which all threads wait, and one in which a byte is read and written at a time.

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::sync::atomic::Ordering::{self, Relaxed};

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU8, AtomicU32, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use super::flow::{Doorbell, RingMemory, RingReader, RingWriter, Rung, Word};

const CAPACITY: u32 = 2;

/// How often a thread is stopped in the middle. What goes wrong at all goes wrong with two or three.
const PREEMPTIONS: usize = 3;

struct ModelMemory {
    words: [AtomicU32; 5],
    /// Without an order of their own: a byte that the words don't order shows an old value in some run.
    bytes: [AtomicU8; CAPACITY as usize],
    /// With nothing in them: the model checker watches who is at which byte when.
    places: [UnsafeCell<()>; CAPACITY as usize],
}

impl RingMemory for ModelMemory {
    const CAPACITY: u32 = CAPACITY;

    fn load(&self, word: Word, order: Ordering) -> u32 {
        self.words[word as usize].load(order)
    }

    fn store(&self, word: Word, value: u32, order: Ordering) {
        self.words[word as usize].store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn put(&self, place: usize, bytes: &[u8]) {
        for (index, &byte) in (place..).zip(bytes) {
            self.places[index].with_mut(|_| ());
            self.bytes[index].store(byte, Relaxed);
        }
    }

    fn take(&self, place: usize, bytes: &mut [u8]) {
        for (index, byte) in (place..).zip(bytes) {
            self.places[index].with(|_| ());
            *byte = self.bytes[index].load(Relaxed);
        }
    }
}

/// What one side can hear: a socket.
#[derive(Default)]
struct RungBells {
    state: Mutex<RungBellsState>,
    changed: Condvar,
}

#[derive(Default)]
struct RungBellsState {
    bells: u32,
    is_ended: bool,
}

impl RungBells {
    /// As `poll`: takes nothing.
    fn wait(&self) {
        let mut state = self.state.lock().unwrap();
        while state.bells == 0 && !state.is_ended {
            state = self.changed.wait(state).unwrap();
        }
    }

    fn change(&self, change: impl FnOnce(&mut RungBellsState)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_one();
    }
}

/// Both sides' inboxes, as one of them sees the two.
struct ModelDoorbell<'a> {
    own: &'a RungBells,
    peer: &'a RungBells,
}

impl Doorbell for ModelDoorbell<'_> {
    fn ring(&self) {
        self.peer.change(|state| state.bells += 1);
    }

    fn hear(&self) -> io::Result<Rung> {
        let mut state = self.own.state.lock().unwrap();
        state.bells = 0;
        Ok(match state.is_ended {
            true => Rung::End,
            false => Rung::Everything,
        })
    }
}

struct Both {
    memory: ModelMemory,
    reader: RungBells,
    writer: RungBells,
}

impl Both {
    fn new() -> Self {
        let memory = ModelMemory {
            words: std::array::from_fn(|_| AtomicU32::new(0)),
            bytes: std::array::from_fn(|_| AtomicU8::new(0)),
            places: std::array::from_fn(|_| UnsafeCell::new(())),
        };
        // As the client makes it: who has read nothing yet wants to be woken.
        memory.store(Word::ReaderSleeps, 1, Relaxed);
        Self {
            memory,
            reader: RungBells::default(),
            writer: RungBells::default(),
        }
    }

    fn of_reader(&self) -> ModelDoorbell<'_> {
        ModelDoorbell {
            own: &self.reader,
            peer: &self.writer,
        }
    }

    fn of_writer(&self) -> ModelDoorbell<'_> {
        ModelDoorbell {
            own: &self.writer,
            peer: &self.reader,
        }
    }

    /// Writes all of it, asleep whenever nothing fits.
    fn write(&self, mut bytes: &[u8]) {
        let (mut writer, doorbell) = (RingWriter::new(), self.of_writer());
        while !bytes.is_empty() {
            let slices = [IoSlice::new(bytes)];
            match writer.write(&self.memory, &doorbell, &slices).unwrap() {
                0 => {
                    self.writer.wait();
                    doorbell.hear().unwrap();
                }
                count => bytes = &bytes[count..],
            }
        }
    }

    /// Reads to the end, asleep whenever there is nothing. `before` is what it does before it sleeps.
    fn read(&self, at_once: usize, before: impl Fn(&RingReader)) -> Vec<u8> {
        let (mut reader, doorbell) = (RingReader::new(), self.of_reader());
        let mut all = Vec::new();
        loop {
            let mut bytes = vec![0; at_once];
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            match reader.read(&self.memory, &doorbell, slices) {
                Ok(Some(count)) => all.extend_from_slice(&bytes[..count]),
                Ok(None) => return all,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    before(&reader);
                    self.reader.wait();
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

impl Both {
    /// Reads to the end as a thread does that has borrowed the reading: it asks to be woken only when it waits.
    fn look(&self, at_once: usize) -> Vec<u8> {
        let (mut reader, doorbell) = (RingReader::new(), self.of_reader());
        reader.wake(&self.memory);
        let (mut all, mut is_gone) = (Vec::new(), false);
        loop {
            let mut bytes = vec![0; at_once];
            let slices = &mut [IoSliceMut::new(&mut bytes)];
            match reader.look(&self.memory, &doorbell, slices) {
                Ok(Some(count)) => all.extend_from_slice(&bytes[..count]),
                Ok(None) => return all,
                Err(error) if error.kind() == ErrorKind::WouldBlock && is_gone => return all,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if reader.sleep(&self.memory).unwrap() {
                        self.reader.wait();
                        is_gone = doorbell.hear().unwrap() == Rung::End;
                        reader.wake(&self.memory);
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
}

fn try_all_orders(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(PREEMPTIONS);
    model.check(run);
}

/// Three bytes pass a ring of two: either side has to wait for the other in some orders, and the indices pass the ring's end.
#[test]
fn bytes_arrive_in_order_whoever_waits() {
    try_all_orders(|| {
        let both = Arc::new(Both::new());
        let writing = both.clone();
        let writer = thread::spawn(move || {
            writing.write(&[1, 2, 3]);
            RingWriter::new().end(&writing.memory, &writing.of_writer());
        });
        assert_eq!(both.read(2, |_| {}), [1, 2, 3]);
        writer.join().unwrap();
    });
}

/// A writer that waits for room is woken by a reader that takes little at a time.
#[test]
fn a_full_ring_wakes_its_writer() {
    try_all_orders(|| {
        let both = Arc::new(Both::new());
        let writing = both.clone();
        let writer = thread::spawn(move || {
            writing.write(&[1, 2, 3, 4]);
            writing.reader.change(|state| state.is_ended = true);
        });
        assert_eq!(both.read(1, |_| {}), [1, 2, 3, 4]);
        writer.join().unwrap();
    });
}

/// A thread that takes over from the task asks once more to be woken, and so does the task afterwards.
#[test]
fn asking_twice_loses_nothing() {
    try_all_orders(|| {
        let both = Arc::new(Both::new());
        let writing = both.clone();
        let writer = thread::spawn(move || {
            writing.write(&[1]);
            RingWriter::new().end(&writing.memory, &writing.of_writer());
        });
        let asking = both.clone();
        let all = both.read(1, move |reader| {
            if !reader.sleep(&asking.memory).unwrap() {
                // There is something: it would not wait.
                asking.reader.change(|state| state.bells += 1);
            }
        });
        assert_eq!(all, [1]);
        writer.join().unwrap();
    });
}

/// What a writer has put in counts, also when its process ends before anybody has read it.
#[test]
fn what_a_dead_process_wrote_is_read() {
    try_all_orders(|| {
        let both = Arc::new(Both::new());
        let writing = both.clone();
        let writer = thread::spawn(move || {
            writing.write(&[1, 2]);
            writing.reader.change(|state| state.is_ended = true);
        });
        assert_eq!(both.read(2, |_| {}), [1, 2]);
        writer.join().unwrap();
    });
}

/// Who looks by itself is rung for while it waits and at no other time, and misses nothing, not even the end.
#[test]
fn who_looks_by_itself_loses_nothing() {
    let runs: [(&'static [u8], bool); 2] = [(&[1, 2, 3], false), (&[1, 2], true)];
    for (bytes, is_killed) in runs {
        try_all_orders(move || {
            let both = Arc::new(Both::new());
            let writing = both.clone();
            let writer = thread::spawn(move || {
                writing.write(bytes);
                if is_killed {
                    writing.reader.change(|state| state.is_ended = true);
                } else {
                    RingWriter::new().end(&writing.memory, &writing.of_writer());
                }
            });
            assert_eq!(both.look(2), bytes);
            writer.join().unwrap();
        });
    }
}
