"""A slot: the process that runs a program's functions. Started by a manager or by ``exoskel worker``; ``python -m exoskel.slot``."""

from __future__ import annotations

import atexit
import os
import pickle
import sys
from collections.abc import Callable

from . import _core, output
from .errors import CredentialError, KeyMemoryError, PolicyError

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["main"]

# What a slot may be given as an open descriptor, by the option that names it.
_DESCRIPTORS = ("connection_fd", "listen_fd", "credential_fd", "policy_fd")
_STREAMS = {"stdout": 0, "stderr": 1, "log": 2}


class Loader:
    """What the loop in `_core` needs of Python, besides the functions themselves."""

    def __init__(self, name: str) -> None:
        self._name = name

    def audit(self, line: str) -> None:
        """Write a line about an accepted or refused session to standard error, where the worker's owner reads it."""
        import time

        print(
            time.strftime("%Y-%m-%dT%H:%M:%S%z"), self._name, line, file=sys.__stderr__, flush=True
        )

    def attach(self, slot: _core.SlotOutput) -> None:
        """Send what tasks print to the manager of this session."""

        def emit(stream: str, text: str) -> None:
            if not slot.send(_STREAMS[stream], text):
                # What children of a task print stays at the worker.
                original = sys.__stdout__ if stream == "stdout" else sys.__stderr__
                if original is not None:
                    original.write(text)
                    original.flush()

        output.install(emit)

    def setup(self, settings: bytes) -> list[str]:
        """Prepare for a manager's functions: its search path if it is our parent, the modules that travel with its program.

        Return what its program needs besides and this worker lacks.
        """
        path, sources, required, registered = pickle.loads(settings)
        sys.path[:] = path or sys.path
        if registered:
            from . import results

            results.install(registered)
        if not sources and not required:
            return []
        from . import modules

        modules.install(sources)
        return modules.missing(required)

    def load(self, function: bytes) -> Callable[..., Any]:
        """Return a function from its pickle; what this worker lacks is named in the error."""
        try:
            loaded: Callable[..., Any] = pickle.loads(function)
        except ImportError as error:
            from . import modules

            raise type(error)(modules.lacking(error, self._name), name=error.name) from error
        # The function's modules may have loaded `logging`.
        output.forward_logging()
        return loaded

    def exception(self, error: BaseException, as_data: bool) -> bytes | list[Any]:
        """Return what travels of an exception: its pickle, or plain data."""
        from . import outcome

        return outcome.encode_exception(error, as_data)

    def finish_task(self) -> None:
        """Send what tasks left without an end of line."""
        output.finish_task()


def main(arguments: list[str] | None = None) -> int:
    """Serve one manager for the length of one session.

    Parameters
    ----------
    arguments : list of str, optional
        ``--options-fd`` and the number of a descriptor, which is followed by others; ``sys.argv`` if not given.

    Returns
    -------
    int
        0 when the session ended, 1 when there was none, 2 when the credential, the policy or the memory for keys can't be used.
    """
    descriptors = _descriptors(sys.argv[1:] if arguments is None else arguments)
    told = _told(descriptors["options_fd"])
    # First, so that it runs last: what users' code ends at its exit in good order has done so by then.
    atexit.register(_end_descendants, os.getpid())
    properties = [("slots", str(told.get("slots", 1)))]
    if "connection_fd" in descriptors:
        properties.append(("local", "yes"))
    name = "worker"
    try:
        _core.serve_slot(
            Loader(name),
            told["options"],
            {
                **{option: descriptors.get(option) for option in _DESCRIPTORS},
                "join": told.get("join"),
                "manager_name": told.get("manager_name"),
                "properties": properties,
                "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            },
        )
    except KeyboardInterrupt:
        # Ctrl-C reaches the whole group of processes; the manager or supervisor says what there is to say.
        return 130
    except (CredentialError, KeyMemoryError, PolicyError) as error:
        # The supervisor gives up on this one: no other start could end better.
        print(f"exoskel slot {name}: {error}", file=sys.__stderr__, flush=True)
        return 2
    except Exception as error:
        print(f"exoskel slot {name}: {error}", file=sys.__stderr__, flush=True)
        return 1
    return 0


def _end_descendants(slot: int) -> None:
    """End what tasks have left running, detached processes too. A forked child of a task that exits is none of it."""
    if os.getpid() == slot:
        _core.end_descendants()


def _descriptors(arguments: list[str]) -> dict[str, int]:
    """Read ``--name number`` pairs. Only our own processes write them, and argparse takes longer to import than all the rest."""
    pairs = zip(arguments[::2], arguments[1::2], strict=False)
    found = {key.removeprefix("--").replace("-", "_"): int(value) for key, value in pairs}
    if len(arguments) % 2 or "options_fd" not in found:
        raise SystemExit("exoskel.slot is started by a manager or by `exoskel worker`")
    return found


def _told(descriptor: int) -> dict[str, Any]:
    """Read what whoever started us put into sealed memory, which its other children share with us, and so the place in it."""
    told: dict[str, Any] = pickle.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    os.close(descriptor)
    return told


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.exit(code)
