"""Exoskel's side of `benches.numeric.run`."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import work

import exoskel as ex


def part_of(table: ex.Shared[Any], index: int) -> float:
    """Read a part of the table."""
    return work.part_of(table.value, index)


def main() -> None:
    """Run one part."""
    part, slots, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    manager: ex.Manager | None = None
    made = work.make_table(megabytes) if part == "shared" else None

    def run() -> list[float]:
        nonlocal manager, made
        if part == "cov":
            manager = manager or ex.Manager(ex.Farm(work.cov), ex.ParDegree(slots))
            return list(manager.map(range(work.COV_TASKS)))
        if manager is None:
            assert made is not None
            table, made = ex.Shared(made), None
            manager = ex.Manager(ex.Farm(partial(part_of, table)), ex.ParDegree(slots))
        return list(manager.map(range(work.SHARED_TASKS)))

    print(json.dumps(work.measure(run)))
    assert manager is not None
    manager.close()


if __name__ == "__main__":
    main()
