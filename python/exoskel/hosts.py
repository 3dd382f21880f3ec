"""Addresses of workers: ``host:port`` or ``unix:/path``, in files, lists and on the command line."""

import os
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["DEFAULT_PORT", "HostAddress", "UnixAddress", "parse_address", "read_hosts"]

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
    ``127.0.0.1:7601 lab1.example.org``.

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
    words = text.split()
    if len(words) not in (1, 2):
        raise ValueError(
            f"got the address {text!r}, expected host:port or unix:/path, then perhaps the name in the certificate"
        )
    rest = words[0]
    if rest.startswith(_UNIX):
        path = rest.removeprefix(_UNIX)
        if not path.startswith("/"):
            raise ValueError(f"got the address {text!r}, expected an absolute path: unix:/path")
        return UnixAddress(path, words[-1] if len(words) == 2 else os.uname().nodename)
    scheme, separator, after = rest.partition("://")
    if separator:
        if scheme != "tcp":
            raise ValueError(f"got the address {text!r}, expected tcp://host:port or unix:/path")
        rest = after
    if rest.startswith("["):
        host, bracket, port_text = rest[1:].partition("]")
        port_text = port_text[1:] if bracket and port_text[:1] in ("", ":") else "?"
    elif rest.count(":") > 1:
        raise ValueError(
            f"got the address {text!r}, expected brackets around an IPv6 address: [::1]:{default_port}"
        )
    else:
        host, _, port_text = rest.partition(":")
    # A leading dash would be an option to ssh.
    if not host or host.startswith("-") or "/" in host:
        raise ValueError(f"got the address {text!r}, expected host:port or unix:/path")
    port = (
        int(port_text)
        if port_text.isascii() and port_text.isdigit()
        else default_port
        if not port_text
        else -1
    )
    if not 0 <= port <= 0xFFFF:
        raise ValueError(f"got port {port_text!r} in {text!r}, expected a number from 0 to 65535")
    return HostAddress(host, port, words[-1] if len(words) == 2 else host)


def read_hosts(
    workers: str | os.PathLike[str] | Iterable[str],
) -> list[HostAddress | UnixAddress]:
    """Read the addresses of workers from a file, one a line, or from a list.

    Empty lines and what follows ``#`` count as nothing.

    Parameters
    ----------
    workers : path or iterable of str
        The file or the list.

    Returns
    -------
    list of HostAddress or UnixAddress
        The addresses, in order.

    Raises
    ------
    ValueError
        If a line is no address, with its number, or there is none at all.
    OSError
        If the file can't be read.
    """
    if isinstance(workers, (str, os.PathLike)):
        with open(workers, encoding="utf-8") as file:
            lines = file.read().splitlines()
        place = f"{os.fspath(workers)}, line "
    else:
        lines, place = list(workers), "address "
    addresses: list[HostAddress | UnixAddress] = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        try:
            addresses.append(parse_address(text))
        except ValueError as error:
            raise ValueError(f"{place}{number}: {error}") from None
    if not addresses:
        raise ValueError(
            f"got no address in {workers!r}, expected host:port or unix:/path, one a line"
        )
    return addresses
