"""The command line: certificates, proxies, trust, workers, policies, simulations.

Every command takes ``--json`` for machine-readable output. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted (Ctrl-C).
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["INTERRUPTED", "WRONG_USAGE", "UsageError", "main"]

# As shells have it: 128, and the number of the signal.
INTERRUPTED = 130
# As `argparse` has it.
WRONG_USAGE = 2


class UsageError(ValueError):
    """Arguments that a command doesn't take, or not together."""


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process if absent.

    Returns
    -------
    int
        The exit code.
    """
    try:
        # Loaded here, so that who interrupts that is told so, too.
        from .commands import run

        return run(argv)
    except KeyboardInterrupt:
        print("exoskel: interrupted", file=sys.stderr, flush=True)
        return INTERRUPTED
