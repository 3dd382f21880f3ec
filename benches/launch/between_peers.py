"""The peers' way from one worker to another: ``between_peers.py ray|dask COUNT`` prints the mean nanoseconds of a piece of 1 MiB."""

from __future__ import annotations

import os
import sys
import time

import numpy as np
from numpy.typing import NDArray

Piece = NDArray[np.float64]

PIECE = 1 << 17
AHEAD = 4


def make(number: int) -> Piece:
    """Return a piece whose numbers tell which one it is."""
    return np.full(PIECE, float(number))


def take(piece: Piece) -> float:
    """Look at both ends of a piece."""
    assert piece[0] == piece[-1]
    return float(piece[0])


def of_ray(count: int) -> float:
    """Two actors of one node: pieces go through its shared memory."""
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)

    @ray.remote(num_cpus=1)
    class Half:
        def make(self, number: int) -> Piece:
            return make(number)

        def take(self, piece: Piece) -> float:
            return take(piece)

    first, second = Half.remote(), Half.remote()
    ray.get([second.take.remote(first.make.remote(0)) for _ in range(AHEAD)])
    begin = time.perf_counter()
    waiting = [second.take.remote(first.make.remote(number)) for number in range(count)]
    assert ray.get(waiting) == list(map(float, range(count)))
    seconds = time.perf_counter() - begin
    ray.shutdown()
    return seconds


def of_dask(count: int) -> float:
    """Two workers of one host, a thread each: pieces go over TCP between them."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        Client(cluster) as client,
    ):
        first, second = list(client.scheduler_info()["workers"])

        def taken(numbers: range) -> list[float]:
            made = client.map(make, numbers, workers=[first], pure=False)
            seen = client.map(take, made, workers=[second], pure=False)
            return list(client.gather(seen))

        taken(range(AHEAD))
        begin = time.perf_counter()
        assert taken(range(count)) == list(map(float, range(count)))
        return time.perf_counter() - begin


if __name__ == "__main__":
    pieces = int(sys.argv[2])
    taken = {"ray": of_ray, "dask": of_dask}[sys.argv[1]](pieces)
    print(int(taken * 1e9) // pieces)
