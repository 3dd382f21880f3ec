"""Our engine: items of so many bytes to local slots and back, over one transport with one protection."""

from __future__ import annotations

import itertools
import os
import sys

from benches.links.turns import take_turns

import exoskel as ex

# Different items, so that nothing is found to be the same.
PAYLOADS = 16


def echo(item: bytes) -> bytes:
    """Give back what has come."""
    return item


def main(transport: str, protection: str) -> None:
    """Start two slots and take turns."""
    payloads: dict[int, list[bytes]] = {}
    with ex.Manager(
        ex.Farm(echo),
        ex.ParDegree(2),
        transport=transport,  # type: ignore[arg-type]
        protection=protection,  # type: ignore[arg-type]
    ) as manager:

        def play(size: int, count: int) -> None:
            if size not in payloads:
                payloads[size] = [os.urandom(size) for _ in range(PAYLOADS)]
            items = itertools.islice(itertools.cycle(payloads[size]), count)
            got = sum(len(answer) for answer in manager.map(items))
            if got != size * count:
                raise AssertionError(f"got {got} bytes, expected {size * count}")

        play(1, 4)
        take_turns({f"engine_{transport.replace(' ', '_')}_{protection}": play})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
