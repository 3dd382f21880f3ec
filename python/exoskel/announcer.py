"""The process of a worker that says on its network that the worker is there, and hears others. It has no key, and no session."""

import signal
import sys

from . import _core
from .worker_log import WorkerLog

__all__ = ["HEARD_FD", "main"]

# The descriptor of the file in which it writes whom it hears.
HEARD_FD = 3
_LOOK_SECONDS = 1.0


def main() -> int:
    """Announce a worker until a signal ends that, and write down whom else it hears.

    Returns
    -------
    int
        The exit code: 0 when it was told to end, 1 when nothing can be announced here.
    """
    parent, name, port, *address = sys.argv[1:]
    # What comes meanwhile is waited for below.
    ends = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    if not _core.follow_parent(int(parent), "exoskel mdns", False):
        return 0
    try:
        announcement = _core.Announcement(name, address[0] if address else None, int(port))
        hearing = _core.HearingWorker(HEARD_FD)
        while signal.sigtimedwait(ends, _LOOK_SECONDS) is None:
            hearing.look()
    except OSError as error:
        WorkerLog().write(f"exoskel announcer: {error}")
        return 1
    announcement.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
