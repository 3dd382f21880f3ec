"""How a process of a job is started that executes a program.

What it finds is made before there is the process, which uses its parent's memory until the program runs: see `_core.spawn_program`.
"""

from __future__ import annotations

import os

from . import _core, confining
from .process_zygote import CONTEXT, CONTEXT_FD, DIAL_FD, by_use, homes, prepare_environment

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a process's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .process_zygote import ProcessStart

__all__ = ["spawn"]


def spawn(
    what: ProcessStart, descriptors: Sequence[int], descriptors_max: int
) -> tuple[int, tuple[str, int] | None]:
    """Start a program.

    Parameters
    ----------
    what : ProcessStart
        The program.
    descriptors : sequence of int
        What it inherits, as `ProcessZygote.start` takes it.
    descriptors_max : int
        How many descriptors it may have.

    Returns
    -------
    process : int
        The process. This process is its parent.
    failure : tuple of (str, int), optional
        Why it has ended before the program could run, in words, and its exit code.

    Raises
    ------
    OSError
        If there can be no other process, or what it needs can't be made.
    """
    inherited, errors, output, dial = by_use(what, descriptors)
    environment = dict(os.environ)
    has_context = prepare_environment(environment, what)
    nothing = os.open(os.devnull, os.O_RDONLY)
    own = [nothing]
    try:
        found = [(nothing, 0), (1 if output is None else output, 1), (errors, 2)]
        sandbox = None
        if what.sandbox is not None:
            sandbox = _sandbox(what, what.sandbox, environment, own)
            has_context = True
        if has_context:
            found.append((inherited, CONTEXT_FD))
        if dial is not None:
            found.append((dial, DIAL_FD))
        found += [(descriptor, _FIRST_FD + place) for place, descriptor in enumerate(own[1:])]
        start = {
            "words": [os.fsencode(word) for word in what.words],
            "places": _places(what.words[0], environment),
            "environment": [os.fsencode(f"{name}={value}") for name, value in environment.items()],
            "directories": _directories(what, environment),
            "descriptors": found,
            "descriptors_max": descriptors_max,
            "name": f"exoskel process {what.number}",
            "sandbox": sandbox,
        }
        return _core.spawn_program(start)
    except ValueError as error:
        raise OSError(f"can't start it: {error}") from error
    finally:
        for descriptor in own:
            os.close(descriptor)


# The first number of the sockets at which its node listens.
_FIRST_FD = DIAL_FD + 1


def _sandbox(
    what: ProcessStart, sandbox: Mapping[str, Any], environment: dict[str, str], own: list[int]
) -> dict[str, Any]:
    """Return what holds a program, change its environment accordingly, and add the sockets at which its node listens."""
    told = {**(what.environment or {}), CONTEXT: str(CONTEXT_FD)}
    confining.keep_no_secret(environment, sandbox, told, sandbox["folder"])
    # Where it may make sockets, it may still not write to the folder of its job.
    bound = confining.listen(sandbox)
    reached_at = confining.places(bound)
    own += [listener.leave() for listener in bound.listeners]
    numbers = [_FIRST_FD + place for place in range(len(bound.listeners))]
    confining.leave_sockets(numbers, bound, environment)
    return {
        "groups": sandbox.get("groups", ()),
        "allowed": confining.allowed(sandbox, sandbox["folder"]),
        "told": CONTEXT_FD,
        "also": confining.held_besides(sandbox),
        "reached_at": reached_at,
    }


def _places(name: str, environment: Mapping[str, str]) -> list[bytes]:
    """Return where a program may be, as a shell looks for it."""
    if os.path.dirname(name):
        return [os.fsencode(name)]
    return [os.fsencode(os.path.join(path, name)) for path in os.get_exec_path(environment)]


def _directories(what: ProcessStart, environment: Mapping[str, str]) -> list[bytes]:
    if what.directory is None:
        return []
    others = () if what.must_enter else homes(environment)
    return [os.fsencode(place) for place in (what.directory, *others)]
