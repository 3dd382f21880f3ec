"""A slot: the process that runs a program's functions. Started by a manager or by ``exoskel worker``; ``python -m exoskel.slot``."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import sys
from collections.abc import Callable

from . import _core, output, script, shared_source, zygote
from .errors import (
    AuthenticationError,
    CredentialError,
    ItemTimeoutError,
    KeyMemoryError,
    PolicyError,
)
from .worker_log import WorkerLog

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

__all__ = ["Loader", "end_descendants", "main", "prepare_environment"]

# What a slot may be given as an open descriptor, by the option that names it.
_DESCRIPTORS = (
    *("connection_fd", "listen_fd", "signer_fd", "credential_fd", "policy_fd"),
    "heard_fd",
)
_STREAMS = {"stdout": 0, "stderr": 1, "log": 2}


class Loader:
    """What the loop in `_core` needs of Python, besides the functions themselves."""

    def __init__(
        self,
        name: str,
        log: WorkerLog,
        told: dict[str, Any] | None = None,
        output_fd: int | None = None,
    ) -> None:
        self._name = name
        self._log = log
        self._told = told or {}
        self._output_fd = output_fd
        self._initializer: bytes | None = None
        self._loads: Callable[[bytes], Any] = pickle.loads

    def audit(self, line: str) -> None:
        """Write a line about an accepted or refused session to standard error, where the worker's owner reads it."""
        import time

        self._log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {self._name} {line}")

    def confine(self, sandbox: dict[str, Any]) -> list[str]:
        """Confine this process, before anything of its manager runs here; return what holds it."""
        from . import worker_sandbox

        try:
            worker_sandbox.check(sandbox, self._told["options"])
        except PermissionError as error:
            self._log.write(f"exoskel slot {self._name}: {error}")
            # Where the files are is nothing that a manager is to know.
            text = "it would let that code use files of the worker itself; its log says which"
            raise PermissionError(text) from None
        if self._output_fd is None:
            raise OSError("nobody reads what it would print")
        worker_sandbox.leave_output(self._output_fd)
        # Until the manager has its first word, this is the slot's own.
        self._log = WorkerLog(self._output_fd)
        return worker_sandbox.confine(sandbox, self._told)

    def attach(self, slot: _core.SlotOutput, shared: _core.SharedSource) -> None:
        """Send what tasks print to the manager of this session, and get from there what it shares."""
        shared_source.source, shared_source.parent = shared, os.getppid()
        if self._output_fd is not None:
            os.close(self._output_fd)
            self._output_fd, self._log = None, WorkerLog()

        def emit(stream: str, text: str) -> None:
            if not slot.send(_STREAMS[stream], text):
                # What children of a task print stays at the worker.
                original = sys.__stdout__ if stream == "stdout" else sys.__stderr__
                if original is not None:
                    original.write(text)
                    original.flush()

        output.install(emit)

    def setup(self, settings: bytes) -> tuple[list[str], list[str]]:
        """Prepare for a manager's functions: its search path if it is our parent, the modules that travel with its program.

        Return what its program needs besides and this worker lacks, and the packages that have other versions here.
        """
        path, sources, required, versions, registered, self._initializer = pickle.loads(settings)
        sys.path[:] = path or sys.path
        if registered:
            from . import results

            results.install(registered)
        differ: list[str] = []
        if versions:
            from .package_versions import differing

            differ = differing(versions)
        if not sources and not required:
            return [], differ
        from . import modules

        modules.install(sources)
        return modules.missing(required), differ

    def load(self, function: bytes) -> Callable[..., Any]:
        """Return a function from its pickle; what this worker lacks is named in the error."""
        loaded: Callable[..., Any] = self._load(function, self._loads)
        return loaded

    def _load(self, function: bytes, loads: Callable[[bytes], Any]) -> Any:
        try:
            loaded = loads(function)
        except ImportError as error:
            from . import modules

            raise type(error)(modules.lacking(error, self._name), name=error.name) from error
        # The function's modules may have loaded `logging`.
        output.forward_logging()
        return loaded

    def enter(self, stream: int, is_open: set[int]) -> None:
        """Take in that items of another stream begin, and which streams are not over. Only siblings of a job use that. The number is that of a `map`'s first stream."""

    def end(self, functions: list[Any]) -> None:
        """Have functions end what they have opened: their stream has ended, and no other one needs them."""
        instances = sys.modules.get(f"{__package__}.instances")
        if instances is not None:
            instances.close_instances(functions)
            output.finish_task()

    def initialize(self) -> bytes | None:
        """Run the manager's initializer; return the traceback of what it raised, empty if it raised nothing. None if there is none."""
        if self._initializer is None:
            return None
        from .script_globals import ScriptGlobals

        globals_of_script = ScriptGlobals()
        try:
            globals_of_script.initialize(self._initializer, self._load)
        except BaseException as error:
            from . import outcome

            _add_reason(error)
            return outcome.traceback_text(error)
        finally:
            output.finish_task()
        self._loads = globals_of_script.loads
        return b""

    def exception(self, error: BaseException, as_data: bool, about: str) -> bytes | list[Any]:
        """Return what travels of an exception: its pickle, or plain data; and what it is about."""
        from . import outcome

        _add_reason(error)
        return outcome.encode_exception(error, as_data, about)

    def allow_interrupts(self, overdue: _core.OverdueItem) -> None:
        """Let items be interrupted that run for too long, or that nobody needs any more."""
        import signal

        def interrupt(_number: int, frame: FrameType | None) -> None:
            # What is half imported fails in this process for ever. Such an item ends its slot, unless it ends soon.
            timeout = None if _is_importing(frame) else overdue.take()
            if timeout == 0:
                raise ItemTimeoutError("nobody needs this item any more")
            if timeout is not None:
                raise ItemTimeoutError(f"it ran longer than timeout={timeout:g} seconds")

        signal.signal(signal.SIGRTMAX, interrupt)

    def timeout_answer(
        self, seconds: float, retries_on: tuple[type, ...] | None
    ) -> tuple[list[Any], bool]:
        """Return what travels of the exception of an item that doesn't end when it is interrupted, and whether it is one for which it runs again."""
        error = ItemTimeoutError(
            f"it ran longer than timeout={seconds:g} seconds, and didn't end when the exception was raised in it; its slot was ended"
        )
        from . import outcome

        return [*outcome.describe_exception(error)[:2], [], None], isinstance(
            error, retries_on or ()
        )

    def finish_task(self) -> None:
        """Send what tasks left without an end of line."""
        output.finish_task()


def _add_reason(error: BaseException) -> None:
    """Add a note to an exception that this slot's sandbox may be why of."""
    # Loaded by who is confined.
    confining = sys.modules.get(f"{__package__}.confining")
    if confining is not None and (why := confining.reason_of(error)):
        with contextlib.suppress(Exception):
            error.add_note(why)


def main(arguments: list[str] | None = None) -> int:
    """Serve one manager for the length of one session.

    Parameters
    ----------
    arguments : list of str, optional
        ``--options-fd`` and the number of a descriptor, which is followed by others; ``sys.argv`` if not given.

    Returns
    -------
    int
        0 when the session ended, 1 when there was none, 2 when the credential, the policy or the memory for keys can't be used, 3 when
        the manager that it dialled is another one than was meant.
    """
    descriptors = _descriptors(sys.argv[1:] if arguments is None else arguments)
    told = _told(descriptors["options_fd"])
    if "signer" in descriptors:
        return _serve_signer(descriptors, told)
    if "requests_fd" in descriptors:
        # Whoever has this is asked for signatures, and may answer.
        os.close(descriptors["requests_fd"])
    for own in ("output_fd", "heard_fd"):
        if own in descriptors:
            os.set_inheritable(descriptors[own], False)
    if "connection_fd" in descriptors:
        os.close(descriptors["options_fd"])
        _core.name_process(f"exoskel slot {descriptors['slot']}")
    else:
        # All slots of a worker have this one.
        shared_source.in_common = descriptors["options_fd"]
        os.set_inheritable(shared_source.in_common, False)
    prepare_environment(descriptors["slot"], told["environment"])
    # First, so that it runs last: what users' code ends at its exit in good order has done so by then.
    atexit.register(end_descendants, os.getpid())
    properties = [("slots", str(told.get("slots", 1)))]
    if "connection_fd" in descriptors:
        properties.append(("local", "yes"))
    name = "worker"
    log = WorkerLog()
    try:
        _core.serve_slot(
            Loader(name, log, told, descriptors.get("output_fd")),
            told["options"],
            {
                **{option: descriptors.get(option) for option in _DESCRIPTORS},
                "join": told.get("join"),
                "manager_name": told.get("manager_name"),
                "credential": None,
                "dialled_fd": None,
                "properties": properties,
                "python": f"{sys.version_info.major}.{sys.version_info.minor}",
                "is_replacement": "replacement" in descriptors,
                "drain": told.get("drain"),
            },
        )
    except (CredentialError, KeyMemoryError, PolicyError) as error:
        # They were good when the worker started: somebody edits one.
        log.write(f"exoskel slot {name}: {error}")
        return 2
    except AuthenticationError as error:
        if _is_first_to_say(descriptors["options_fd"]):
            log.write(f"exoskel slot {name}: {error}; its name can be given as --manager-name")
        return 3
    except ConnectionError as error:
        # A child whose parent has gone has nobody to tell: what its parent knows of it, that tells.
        if "connection_fd" not in descriptors:
            log.write(f"exoskel slot {name}: {error}")
        return 1
    except Exception as error:
        log.write(f"exoskel slot {name}: {error}")
        return 1
    return 0


def _serve_signer(descriptors: dict[str, int], told: dict[str, Any]) -> int:
    """Sign for the slots of a worker, as the only one of its processes that reads the credential."""
    for other in ("signer_fd", "listen_fd", "output_fd", "heard_fd"):
        if other in descriptors:
            os.close(descriptors[other])
    _core.hide_process()
    try:
        _core.serve_signer(told["options"], descriptors["requests_fd"])
    except Exception as error:
        WorkerLog().write(f"exoskel signer: {error}")
    return 1


def _is_first_to_say(descriptor: int) -> bool:
    """Say whether no other slot of this worker has said this before. The mode of the file that they share remembers it."""
    mode = os.fstat(descriptor).st_mode & 0o777
    os.fchmod(descriptor, mode & 0o700)
    return mode != 0o700


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported by what runs."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def end_descendants(slot: int) -> None:
    """End what tasks have left running, detached processes too. A forked child of a task that exits is none of it."""
    if os.getpid() == slot:
        _core.end_descendants()


def _descriptors(arguments: list[str]) -> dict[str, int]:
    """Read ``--name number`` pairs. Only our own processes write them, and argparse takes longer to import than all the rest."""
    pairs = zip(arguments[::2], arguments[1::2], strict=False)
    found = {key.removeprefix("--").replace("-", "_"): int(value) for key, value in pairs}
    if len(arguments) % 2 or "options_fd" not in found or not found.keys() & {"slot", "signer"}:
        raise SystemExit("exoskel.slot is started by a manager or by `exoskel worker`")
    return found


def _told(descriptor: int) -> dict[str, Any]:
    """Read what whoever started us put into sealed memory, which its other children share with us, and so the place in it."""
    told: dict[str, Any] = pickle.loads(os.pread(descriptor, os.fstat(descriptor).st_size, 0))
    return told


def prepare_environment(slot: int, variables: dict[str, str]) -> None:
    """Say which slot this is, and how many threads libraries may start, before anybody's code is imported."""
    os.environ["EXOSKEL_SLOT"] = str(slot)
    os.environ.update(variables)
    if variables and "numpy" in sys.modules:
        # By a file that the interpreter runs when it starts.
        from .inner_threads import limit_loaded

        limit_loaded(int(next(iter(variables.values()))))


if __name__ == "__main__":
    words = sys.argv[1:]
    if zygote.OPTION in words:
        words = zygote.serve(words)
    script.enter()
    code = main(words)
    sys.stdout.flush()
    sys.exit(code)
