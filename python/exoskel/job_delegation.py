"""A proxy of a grid's user for a job: each host's agent makes a key, which stays there, and the job's creator signs a proxy for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import CredentialError, ExoskelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from . import links

__all__ = ["PROXY", "HostProxy", "delegation"]

# Where processes find it, as grids' tools do.
PROXY = "X509_USER_PROXY"
# How long a host may take to make a key, or to write the proxy.
_SECONDS = 60.0


class HostProxy:
    """The agent's part. Its methods are handlers of the agent's endpoint, which only the job's creator has a startpoint of."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._path = folder / "proxy"
        self._environment = environment
        self._key: bytes | None = None

    def request_proxy(self) -> bytes:
        """Make a key, and return the request that it be signed."""
        from . import proxies

        self._key, asked = proxies.request()
        return asked

    def take_proxy(self, chain: bytes) -> None:
        """Write the proxy where processes of the job find it."""
        from . import _core, proxies

        if self._key is None:
            raise CredentialError("got a proxy that was not asked for")
        content, _ = proxies.complete(bytes(chain), self._key, self._path)
        _core.write_secret(self._path, content)
        self._environment[PROXY] = str(self._path)
        self._key = None


def delegation(told: dict[str, Any]) -> Callable[[str, links.Binding], None]:
    """Return what gives the agent of a host a proxy of the user.

    Parameters
    ----------
    told : dict
        What the job's creator proves itself by.

    Raises
    ------
    ValueError
        If that is nothing of a grid.
    CredentialError
        If it can't sign proxies.
    """
    if "credential" not in told or "trust_anchors" not in told:
        raise ValueError(
            "got delegate=True, expected launch=Agents(...) with credential= and trust_anchors= of a grid's user: nobody else has proxies"
        )
    from . import proxies
    from .identity import CredentialFiles

    certificate = Path(told["credential"])
    files = CredentialFiles(certificate, Path(told.get("key", certificate)), "credential")
    issuer = proxies.read_issuer(files, _refuse_to_ask)
    # Those who run others' processes need no right to start jobs of their own.
    wishes = proxies.Wishes(limited=True)

    def delegate(host: str, agent: links.Binding) -> None:
        try:
            asked = agent.request("request_proxy").result(_SECONDS)
            chain, _ = proxies.sign(issuer, wishes, bytes(asked))
            agent.request("take_proxy", chain).result(_SECONDS)
        except (ExoskelError, TimeoutError) as error:
            raise CredentialError(f"the agent of {host} takes no proxy: {error}") from error

    return delegate


def _refuse_to_ask(what: str) -> str:
    raise CredentialError(
        f"got a key with a pass phrase ({what}), expected a proxy: exoskel proxy init asks for the phrase"
    )
