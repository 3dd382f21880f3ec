"""What a job's creator may ask an agent to start: checked before anything is done, as whoever asks may be anybody whom the host lets start jobs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import LinkError
from .hosts import HostAddress, parse_address
from .job_output import check_label
from .link_arguments import as_startpoint
from .link_places import listening

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .links import Startpoint

__all__ = ["PROCESSES_MAX", "check_listen", "check_number", "check_start", "creator_within"]

# Of a job: numbers of processes are never used again in it.
PROCESSES_MAX = _core.JobMachine.PROCESSES_MAX
# A creator listens at one, or one for each kind of address.
_CREATOR_PORTS_MAX = 4
# Where each process listens: it has a socket for each.
_ADDRESSES_MAX = 4


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
    if what.get("label") is not None:
        check_label(what["label"])
    _check(what.get("sandbox") is None or isinstance(what["sandbox"], dict), "a sandbox")


def check_listen(addresses: Any) -> None:
    """See that processes are to listen on a network, and neither at paths nor at ports that their creator chooses: others look for services there.

    Raises
    ------
    ValueError
        If they aren't.
    """
    expected = f"at most {_ADDRESSES_MAX} addresses of a network to listen at, with port 0"
    is_list = isinstance(addresses, list) and len(addresses) <= _ADDRESSES_MAX
    _check(is_list and all(map(_is_word, addresses)), expected)
    places = listening(addresses)
    _check(all(isinstance(one, HostAddress) and one.port == 0 for one in places), expected)


def creator_within(text: str, addresses: Sequence[str] | None) -> Startpoint:
    """Return the startpoint of a job's creator, as an agent dials it.

    Whoever may do less than the host's account must not have its agent look for what listens elsewhere.

    Parameters
    ----------
    text : str
        As the creator has said it.
    addresses : sequence of str, optional
        From where it has come. If given, it is dialled there alone, at the ports that it states.

    Raises
    ------
    LinkError
        If it states none.
    """
    said = as_startpoint(text)
    if addresses is None:
        return said
    ports: dict[int, None] = {}
    for hint in said.hints:
        # Neither a path of this host, nor a way through a gateway.
        with contextlib.suppress(ValueError):
            place = parse_address(hint, 0)
            if isinstance(place, HostAddress) and place.port:
                ports[place.port] = None
    if not ports or len(ports) > _CREATOR_PORTS_MAX:
        raise LinkError(
            f"got {len(ports)} ports at which the job's creator listens, expected 1 to {_CREATOR_PORTS_MAX}: this host's policy confines it, and has it dialled only at {', '.join(addresses)}, from where it has come"
        )
    return said.with_hints([f"{address}:{port}" for port in ports for address in addresses])


def _check(is_right: bool, expected: str) -> None:
    if not is_right:
        raise ValueError(f"got a request to start processes that is none, expected {expected}")


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _is_name(value: Any) -> bool:
    return _is_word(value) and value != "" and "=" not in value
