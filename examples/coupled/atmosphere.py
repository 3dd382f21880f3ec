"""An atmosphere that cools what is warm below it. Rows in turn for each process: another layout than the ocean's."""

import exoskel as ex

STEPS = 20

with ex.Member("atmosphere") as atmosphere:
    surface = atmosphere.array("surface", ex.Layout((128, 256), "f8", ("cyclic(8)", "*")))
    cooling = atmosphere.array("cooling", ex.Layout((128, 256), "f8", ("cyclic(8)", "*")))
    taken = 0.0
    for _ in range(STEPS):
        with surface.read() as below, cooling.write() as local:
            local[...] = 0.01 * (below - 10)
            taken += local.sum()
    print(f"atmosphere: process {atmosphere.rank} of 2 has taken {taken:.1f}\n", end="")
