"""An ocean whose warm spot spreads and is cooled by the atmosphere above it. Blocks of rows and columns, one for each process."""

import numpy as np

import exoskel as ex

STEPS, SHAPE = 20, (256, 512)


def spread(cells: np.ndarray) -> np.ndarray:
    """What diffusion makes of cells in a step; the halo around them is what the neighbours have."""
    around = cells[:-2, 1:-1] + cells[2:, 1:-1] + cells[1:-1, :-2] + cells[1:-1, 2:]
    return cells[1:-1, 1:-1] + 0.1 * (around - 4 * cells[1:-1, 1:-1])


with ex.Member("ocean") as ocean:
    temperature = ocean.array("temperature", ex.Layout(SHAPE, "f8", ("block", "block")))
    # The same cells with one more on each side, which the neighbours own: this program is connected to itself.
    around = ocean.array("around", ex.Layout(SHAPE, "f8", ("block", "block"), halo=1))
    around.local[...] = 10
    cooling = ocean.array("cooling", ex.Layout((128, 256), "f8", ("block", "block")))
    rows, columns = (np.r_[axis[0]] for axis in temperature.extents)
    distance = (rows[:, None] - 128) ** 2 + (columns[None, :] - 256) ** 2
    field = 10 + 20 * np.exp(-distance / 2000)
    for _ in range(STEPS):
        with temperature.write() as local:
            local[...] = field
        with around.read() as cells:
            field = spread(cells)
        with cooling.read() as local:
            field -= local.repeat(2, axis=0).repeat(2, axis=1)
    if ocean.rank == 0:
        print(f"ocean: {STEPS} steps, {field.mean():.3f} degrees in this block")
