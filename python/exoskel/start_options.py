"""How a line of a hosts file has its worker started: ``key=value`` after its address and name, for ``exoskel up``."""

import argparse
from collections.abc import Iterable

from .options import WorkerOptions, add_arguments, declared

__all__ = ["checked", "number_of_slots", "worker_words"]

# What `exoskel up` itself copies to the host.
_COPIED = ("credential", "key", "policy")
_SLOTS_MAX = 4096


def checked(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Check the options of a line.

    Parameters
    ----------
    pairs : iterable of tuple of str
        Keys and values.

    Returns
    -------
    tuple of tuple of str
        The same.

    Raises
    ------
    ValueError
        If a key is none, stands twice, or has a value that it can't have.
    """
    pairs = tuple(pairs)
    known = ["python", "slots", "listen", *_options_of_workers()]
    seen: set[str] = set()
    for key, value in pairs:
        if key not in known:
            raise ValueError(f"got {key}={value}, expected one of {', '.join(known)} before the =")
        if key in seen:
            raise ValueError(f"got {key}= twice, expected it once")
        seen.add(key)
        _check(key, value)
    return pairs


def worker_words(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return the options of ``exoskel worker`` that a line gives, but for what is Python's and where it listens.

    Parameters
    ----------
    pairs : iterable of tuple of str
        Checked keys and values.

    Returns
    -------
    list of str
        The words of the command.
    """
    return [f"--{key}={value}" for key, value in pairs if key not in ("python", "listen")]


def number_of_slots(text: str) -> int:
    """Read how many slots a worker offers.

    Parameters
    ----------
    text : str
        The argument.

    Returns
    -------
    int
        The number.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is none, or no worker has so many.
    """
    try:
        slots = int(text)
    except ValueError:
        slots = 0
    if not 1 <= slots <= _SLOTS_MAX:
        raise argparse.ArgumentTypeError(f"got {text}, expected 1 to {_SLOTS_MAX} slots")
    return slots


def _options_of_workers() -> list[str]:
    options = declared(WorkerOptions).items()
    return [
        name.replace("_", "-")
        for name, option in options
        if option.metavar is not None and name not in _COPIED
    ]


def _check(key: str, value: str) -> None:
    if not value or value.startswith("-"):
        raise ValueError(f"got {key}={value}, expected a value")
    if key == "python":
        return
    if key == "slots":
        try:
            number_of_slots(value)
        except argparse.ArgumentTypeError:
            raise ValueError(
                f"got slots={value}, expected a number from 1 to {_SLOTS_MAX}"
            ) from None
        return
    if key == "listen":
        from .hosts import HostAddress, parse_address

        if not isinstance(parse_address(value), HostAddress):
            raise ValueError(f"got listen={value}, expected host:port")
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_arguments(parser, WorkerOptions)
    try:
        parser.parse_args([f"--{key}={value}"])
    except argparse.ArgumentError as error:
        raise ValueError(f"{key}={value}: {error.message}") from None
