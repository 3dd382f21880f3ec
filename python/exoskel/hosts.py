"""Addresses of workers: ``host:port NAME`` or ``unix:/path``, in files, lists and on the command line."""

import codecs
import os
from collections.abc import Iterable
from typing import NamedTuple

from . import _core
from .short_text import short_text

__all__ = [
    "DEFAULT_PORT",
    "HostAddress",
    "UnixAddress",
    "parse_address",
    "parse_address_alone",
    "read_hosts",
]

# Of a worker that listens; a manager that workers join has the one before it.
DEFAULT_PORT = 7601

_UNIX = "unix:"


class HostAddress(NamedTuple):
    """A host and a TCP port."""

    host: str
    """Its name or its address."""
    port: int
    """The port on which its worker listens."""
    name: str
    """The name in its worker's certificate: that of the host, unless the line says another."""
    options: tuple[tuple[str, str], ...] = ()
    """How ``exoskel up`` starts its worker: what the line says as ``key=value``, in order."""

    def __str__(self) -> str:
        """Return ``host:port``, IPv6 addresses in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class UnixAddress(NamedTuple):
    """The path of a Unix socket on this machine."""

    path: str
    """Where it is; absolute."""
    name: str
    """The name in its worker's certificate: that of this machine, unless the line says another."""

    def __str__(self) -> str:
        """Return ``unix:`` and the path."""
        return f"{_UNIX}{self.path}"


def parse_address(text: str, default_port: int = DEFAULT_PORT) -> HostAddress | UnixAddress:
    """Read ``host``, ``host:port`` or ``[ipv6]:port``, with or without ``tcp://`` before it, or ``unix:/path``.

    A second word is the name in the worker's certificate, where it isn't that of the host (an address, a tunnel):
    ``127.0.0.1:7601 lab1.example.org``. Words such as ``slots=4`` may follow, which say how ``exoskel up`` starts the worker: ``python``,
    ``slots``, ``listen``, and the options of ``exoskel worker`` but for those that name its credential and policy.

    Parameters
    ----------
    text : str
        The address.
    default_port : int
        The port if it names none.

    Returns
    -------
    HostAddress or UnixAddress
        The address.

    Raises
    ------
    ValueError
        If it is none.
    """
    host, port, name, options = _core.read_host(text, default_port)
    if options:
        from .start_options import checked

        options = list(checked(options))
        if port is None:
            raise ValueError(f"got {options[0][0]}= for a Unix socket, expected it for host:port")
    return (
        UnixAddress(host, name) if port is None else HostAddress(host, port, name, tuple(options))
    )


def parse_address_alone(text: str, default_port: int = DEFAULT_PORT) -> HostAddress | UnixAddress:
    """Read an address where no line of a hosts file is meant: what stands behind it there would be lost.

    Parameters
    ----------
    text : str
        The address.
    default_port : int
        The port if it names none.

    Returns
    -------
    HostAddress or UnixAddress
        The address.

    Raises
    ------
    ValueError
        If it is none, or another word follows.
    """
    address = parse_address(text, default_port)
    if len(text.split()) > 1:
        raise ValueError(f"got {text!r}, expected an address and nothing behind it: {address}")
    return address


def read_hosts(
    workers: str | os.PathLike[str] | Iterable[str],
    default_port: int = DEFAULT_PORT,
) -> list[HostAddress | UnixAddress]:
    """Read the addresses of workers from a file, one ``host:port NAME`` a line, or from a list.

    Empty lines and what follows ``#`` count as nothing, and a line that stands there twice counts once.

    Parameters
    ----------
    workers : path or iterable of str
        The file or the list.
    default_port : int
        The port where a line names none.

    Returns
    -------
    list of HostAddress or UnixAddress
        The addresses, in order.

    Raises
    ------
    TypeError
        If an element of the list is no text.
    ValueError
        If a line is no text or no address, or has the address of another line and says something else of it, with its number; or if there is no
        line at all.
    OSError
        If the file can't be read.
    """
    if isinstance(workers, (str, os.PathLike)):
        try:
            with open(workers, "rb") as file:
                content = file.read()
        except FileNotFoundError as error:
            expected = 'expected the path of a file with one "host:port NAME" a line, or a list of such lines: ["lab1:7601", "lab2:7601"]'
            raise FileNotFoundError(
                error.errno, f"{error.strerror}; {expected}", os.fspath(workers)
            ) from None
        place = f"{os.fsdecode(workers)}, line "
        # Some editors begin a file with a byte order mark.
        content = content.removeprefix(codecs.BOM_UTF8)
        try:
            lines = content.decode().split("\n")
        except UnicodeDecodeError as error:
            number = content.count(b"\n", 0, error.start) + 1
            raise ValueError(
                f"{place}{number}: got bytes that are no UTF-8, expected host:port NAME or unix:/path as text in UTF-8"
            ) from None
    else:
        lines, place = list(workers), "address "
    found: dict[str, tuple[int, HostAddress | UnixAddress]] = {}
    for number, line in enumerate(lines, 1):
        if not isinstance(line, str):
            raise TypeError(
                f'{place}{number}: got {short_text(line)}, expected a text such as "lab1:7601" or "10.1.0.12:7601 lab1.example.org"'
            )
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            address = parse_address(text, default_port)
        except ValueError as error:
            raise ValueError(f"{place}{number}: {error}") from None
        first, known = found.setdefault(str(address), (number, address))
        if known.name != address.name:
            raise ValueError(
                f"{place}{number}: got {address} as {address.name}, and as {known.name} in line {first}; expected one line for each worker"
            )
        if known != address:
            raise ValueError(
                f"{place}{number}: got {address} with other options than in line {first}, expected one line for each worker"
            )
    if not found:
        raise ValueError(
            f"got no address in {workers!r}, expected host:port NAME or unix:/path, one a line"
        )
    return [address for _, address in found.values()]
