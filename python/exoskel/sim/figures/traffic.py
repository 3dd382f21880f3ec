"""OFF/ON ratios of our traces: what the paper took from a table that is not public."""

from __future__ import annotations

from .setting import BENCHMARKS, Setting

__all__ = ["GAP_NS", "ratios"]

# A gap this long is silence; `exoskel_keycache::periods` says what follows from it.
GAP_NS = 20_000


def ratios(setting: Setting) -> dict[str, float]:
    """Return OFF/ON of each benchmark, by its name, the largest first.

    Parameters
    ----------
    setting : Setting
        Says where the traces are.
    """
    found = {}
    for benchmark in BENCHMARKS:
        periods = setting.trace(benchmark).periods(GAP_NS)
        # The small class may never be silent for so long.
        if periods is not None:
            found[benchmark] = round(periods["off_us"] / periods["on_us"], 2)
    return dict(sorted(found.items(), key=lambda item: -item[1]))
