//! How long one process packs what it sends, rows to columns of square arrays of eight bytes an element, four processes to four, into
//! pieces of 1 MiB.
//!
//!     cargo run --release -p exoskel-redist --example pack_speed -- 256 4096

#![expect(clippy::print_stdout, reason = "a program for the terminal")]
#![expect(clippy::disallowed_methods, reason = "it measures time")]

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use exoskel_redist::{
    AxisSharing, ElementType, Layout, Mapping, MemoryOrder, PlanSide, RedistributionPlan,
    StridedCopy,
};

const PROCESSES: u32 = 4;
const PIECE_BYTES: u64 = 1 << 20;
const TIMES: usize = 9;

fn layout(length: u64, axis: usize) -> Result<Layout, Box<dyn Error>> {
    let mut sharing = vec![AxisSharing::Whole; 2];
    sharing[axis] = AxisSharing::Block;
    let mut grid = [1; 2];
    grid[axis] = PROCESSES;
    let (element, order) = (ElementType::FLOAT64, MemoryOrder::C);
    Ok(Layout::new(
        &[length; 2],
        element,
        sharing,
        &grid,
        &[0; 2],
        order,
    )?)
}

fn main() -> Result<(), Box<dyn Error>> {
    for word in std::env::args().skip(1) {
        let length: u64 = word.parse()?;
        let (source, target) = (layout(length, 0)?, layout(length, 1)?);
        let mapping = Mapping::new(&source, &target, None, None, None)?;
        let plan = RedistributionPlan::new(&source, &target, &mapping, PlanSide::Source, 0);
        let strides = source.local_strides(0);
        let cuts: Vec<_> = plan
            .messages()
            .map(|message| StridedCopy::packing(message, &strides).cut(PIECE_BYTES))
            .collect();
        let own = length * length * 8 / u64::from(PROCESSES);
        let contents = vec![1; usize::try_from(own)?];
        let mut buffer = vec![0; usize::try_from(PIECE_BYTES)?];
        let mut times = Vec::new();
        for _ in 0..TIMES {
            let start = Instant::now();
            for cut in &cuts {
                for piece in (0..cut.count()).map(|number| cut.piece(number)) {
                    piece.run(&contents, &mut buffer[..usize::try_from(piece.bytes())?]);
                    black_box(&mut buffer);
                }
            }
            times.push(start.elapsed().as_nanos());
        }
        times.sort_unstable();
        println!("{length} {}", times[TIMES / 2]);
    }
    Ok(())
}
