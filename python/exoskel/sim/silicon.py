"""What a card's security costs in silicon: the paper's CACTI figures (45 nm), and a line through them.

The paper (Lee, An, Kim, J. Parallel Distrib. Comput. 2010, section 3.1) gives two sizes of fully associative memory, made of
blocks of 32 bytes: 16 KB take 2.3 mm2 and 0.1 W, 16 entries 0.19 mm2 and 0.09 W; and one AES-GCM engine, 0.34 mm2 and 0.35 W.
Other sizes are on the straight line through the two, in entries of one block. That is a guess between them and worth less
beyond: CACTI itself was not run, and set-associative memories are smaller than the line says.
"""

from __future__ import annotations

__all__ = ["BLOCK_BYTES", "ENGINE_SQUARE_MM", "ENGINE_WATT", "Silicon", "card", "memory"]

from typing import NamedTuple

BLOCK_BYTES = 32
ENGINE_SQUARE_MM = 0.34
ENGINE_WATT = 0.35

# (entries, mm2, W): the paper's buffer, and its cache of 16 KB.
_SMALL = (16, 0.19, 0.09)
_LARGE = (16 * 1024 // BLOCK_BYTES, 2.3, 0.1)


class Silicon(NamedTuple):
    """What something costs on the chip."""

    square_mm: float
    watt: float


def memory(entries: int) -> Silicon:
    """Return what a memory for keys costs.

    Parameters
    ----------
    entries : int
        How many blocks of 32 bytes it has; 0 for none.

    Returns
    -------
    Silicon
        Area in mm2 and power in W.
    """
    if entries == 0:
        return Silicon(0.0, 0.0)
    share = (entries - _SMALL[0]) / (_LARGE[0] - _SMALL[0])
    return Silicon(
        *(low + share * (high - low) for low, high in zip(_SMALL[1:], _LARGE[1:], strict=True))
    )


def card(cache_entries: int, buffer_entries: int) -> Silicon:
    """Return what an engine, a cache and a prefetch buffer cost together.

    Parameters
    ----------
    cache_entries, buffer_entries : int
        Blocks of 32 bytes each; 0 for none.

    Returns
    -------
    Silicon
        Area in mm2 and power in W.
    """
    parts = (memory(cache_entries), memory(buffer_entries))
    return Silicon(
        ENGINE_SQUARE_MM + sum(part.square_mm for part in parts),
        ENGINE_WATT + sum(part.watt for part in parts),
    )
