"""What a job's creator may ask an agent to start: checked before anything is done, as whoever asks may be anybody whom the host lets start jobs."""

from __future__ import annotations

from typing import Any

from .hosts import HostAddress
from .link_places import listening

__all__ = ["PROCESSES_MAX", "check_listen", "check_number", "check_start"]

# Of a job: numbers of processes are never used again in it.
PROCESSES_MAX = 100_000


def check_number(value: Any) -> None:
    """See that this is the number of a process, a rank or a group: paths are made of it.

    Raises
    ------
    ValueError
        If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= PROCESSES_MAX:
        raise ValueError(f"got {value!r}, expected a whole number from 0 to {PROCESSES_MAX}")


def check_start(group: Any, numbers: Any, ranks: Any, what: Any, told: Any) -> None:
    """See that a request to start processes is one; see `exoskel.agent.Agent.start`.

    Raises
    ------
    ValueError
        If it isn't.
    """
    _check(isinstance(what, dict) and isinstance(told, dict), "two dictionaries")
    _check(isinstance(numbers, list) and isinstance(ranks, list), "lists of numbers and ranks")
    _check(len(numbers) == len(ranks) > 0, "as many ranks as numbers")
    joined = what.get("joined", [])
    _check(isinstance(joined, list), "a list of those that join")
    for number in (group, told.get("size"), *numbers, *ranks, *joined):
        check_number(number)
    _check(len({*numbers, *joined}) == len(numbers) + len(joined), "different numbers")
    words, directory, environment = (
        what.get(name) for name in ("words", "directory", "environment")
    )
    _check(isinstance(words, list) and all(map(_is_word, words)), "a program's words")
    _check(directory is None or _is_word(directory), "a directory")
    _check(
        isinstance(environment, dict)
        and all(map(_is_name, environment))
        and all(map(_is_word, environment.values())),
        "variables of the environment",
    )
    _check(what.get("sandbox") is None or isinstance(what["sandbox"], dict), "a sandbox")


def check_listen(addresses: Any) -> None:
    """See that processes are to listen on a network, and not at paths that their creator chooses.

    Raises
    ------
    ValueError
        If they aren't.
    """
    expected = "addresses of a network to listen at"
    _check(isinstance(addresses, list) and all(map(_is_word, addresses)), expected)
    _check(all(isinstance(one, HostAddress) for one in listening(addresses)), expected)


def _check(is_right: bool, expected: str) -> None:
    if not is_right:
        raise ValueError(f"got a request to start processes that is none, expected {expected}")


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_name(value: Any) -> bool:
    return _is_word(value) and value != "" and "=" not in value
