"""Who somebody is in a grid: the identity that a verifier has proven, and where a user's own credential is."""

import dataclasses
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from .errors import CredentialError

__all__ = [
    "CredentialFiles",
    "Identity",
    "Peer",
    "current_credential",
    "trust_anchors",
    "vomsdir",
]


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody whose certificates were judged and found good.

    Parameters
    ----------
    dn : str
        The distinguished name of the end entity in slash form, whatever proxies stand below it: ``/DC=org/CN=Alice``. An independent
        proxy has its own.
    vo : str, optional
        The primary virtual organisation.
    fqans : tuple of str
        The attributes that virtual organisations gave, the primary one first: ``/vo/group/Role=production``.
    limited : bool
        Whether a limited proxy is among them: such a user must not start jobs.
    chain : tuple of bytes
        The certificates as presented, leaf first, DER. Behind a front that sends no chain this is the leaf alone.
    rfc2253 : str, optional
        The distinguished name as RFC 2253 writes it. This and all that follows is not known behind a front.
    type : str, optional
        ``"end-entity"``, ``"rfc3820"``, ``"draft"`` or ``"legacy"``.
    depth : int, optional
        How many proxies stand below the end entity.
    independent : bool, optional
        Whether an independent proxy is among them.
    expires : int, optional
        When the first thing ends that proves all this, in seconds since 1970.
    serials : tuple of str
        The serial numbers of the chain's certificates, in hexadecimal digits.
    attributes : tuple of dict
        One entry for each attribute certificate that counts: ``vo``, ``server``, ``fqans``, ``generic``, ``issuer``, ``serial``, ``not_after``.
    attribute_faults : tuple of str
        Why other attribute certificates count for nothing.
    """

    dn: str
    vo: str | None = None
    fqans: tuple[str, ...] = ()
    limited: bool = False
    # Kilobytes that nobody reads.
    chain: tuple[bytes, ...] = field(default=(), repr=False)
    rfc2253: str | None = None
    type: str | None = None
    depth: int | None = None
    independent: bool | None = None
    expires: int | None = None
    serials: tuple[str, ...] = ()
    attributes: tuple[dict[str, Any], ...] = ()
    attribute_faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Make one from what the extension module says of a proven identity."""
        lists = {key: tuple(value) for key, value in fields.items() if isinstance(value, list)}
        names = [field.name for field in dataclasses.fields(cls)]
        known = {key: fields[key] for key in names if key in fields}
        return cls(**{**known, **{key: lists[key] for key in known if key in lists}})

    def attribute(self, pattern: str) -> str | None:
        """Return the first attribute that a pattern means, or None.

        Parameters
        ----------
        pattern : str
            As policies write it: ``/vo/group/Role=production``, ``/vo/*``.

        Returns
        -------
        str or None
            The attribute.
        """
        from . import _core

        return _core.matching_attribute(pattern, list(self.fqans))


def _nothing_is_allowed(action: str) -> str:
    return f"nobody has said whether the policy allows {action!r}"


@dataclass(frozen=True, slots=True)
class Peer(Identity):
    """The client of a connection or a request: who it is, and what it may do by the policy of the service.

    Parameters
    ----------
    account : str, optional
        The local account that the policy's ``[accounts]`` has for this identity.
    reason_against : callable
        Says why the policy does not allow an action, or None if it does. `refusal` calls it.

    Notes
    -----
    The other parameters are those of `Identity`.
    """

    account: str | None = None
    reason_against: Callable[[str], str | None] = field(
        default=_nothing_is_allowed, repr=False, compare=False
    )

    def may(self, action: str) -> bool:
        """Return whether the policy allows this client an action.

        Parameters
        ----------
        action : str
            The name of an action, as ``[[allow.rule]]`` of the policy has it. Without a policy nothing is allowed.

        Returns
        -------
        bool
        """
        return self.refusal(action) is None

    def refusal(self, action: str) -> str | None:
        """Return why the policy does not allow this client an action, or None if it does.

        Parameters
        ----------
        action : str
            The name of an action.

        Returns
        -------
        str or None
            The reason, in words for the client.
        """
        return self.reason_against(action)


@dataclass(frozen=True)
class CredentialFiles:
    """Where a credential is.

    Parameters
    ----------
    certificate : Path
        The certificate, with the rest of the chain behind it.
    key : Path
        The key; the same file for a proxy.
    named_by : str
        What led there, for messages.
    """

    certificate: Path
    key: Path
    named_by: str

    @property
    def is_one_file(self) -> bool:
        """Whether certificate and key stand in one file, as those of a proxy do."""
        return self.certificate == self.key


def proxy_path() -> Path:
    """Return where the tools of the grid look for the user's proxy: ``X509_USER_PROXY``, else ``/tmp/x509up_uUID``."""
    named = os.environ.get("X509_USER_PROXY")
    return Path(named) if named else Path(f"/tmp/x509up_u{os.getuid()}")


def own_certificate() -> CredentialFiles | None:
    """Return the user's own certificate, by which proxies are made: ``X509_USER_CERT`` and ``X509_USER_KEY``, else ``~/.globus``."""
    certificate, key = os.environ.get("X509_USER_CERT"), os.environ.get("X509_USER_KEY")
    if certificate or key:
        if not (certificate and key):
            lacking = "X509_USER_KEY" if certificate else "X509_USER_CERT"
            raise CredentialError(f"{lacking} is not set: set both it and its counterpart, or none")
        return CredentialFiles(Path(certificate), Path(key), "X509_USER_CERT and X509_USER_KEY")
    folder = Path("~/.globus").expanduser()
    if (folder / "usercert.pem").exists():
        return CredentialFiles(folder / "usercert.pem", folder / "userkey.pem", "~/.globus")
    for name in ("usercred.p12", "usercert.p12"):
        if (folder / name).exists():
            return CredentialFiles(folder / name, folder / name, "~/.globus")
    return None


def current_credential() -> CredentialFiles:
    """Return the credential by which grid tools of this user act now.

    The first of: ``X509_USER_PROXY``, ``/tmp/x509up_uUID``, ``X509_USER_CERT`` with ``X509_USER_KEY``, ``~/.globus``.

    Raises
    ------
    CredentialError
        If there is none.
    """
    proxy = proxy_path()
    if os.environ.get("X509_USER_PROXY"):
        return CredentialFiles(proxy, proxy, "X509_USER_PROXY")
    if proxy.exists():
        return CredentialFiles(proxy, proxy, "the default place for a proxy")
    own = own_certificate()
    if own is None:
        raise CredentialError(
            f"there is no credential: no {proxy}, no X509_USER_CERT, no ~/.globus/usercert.pem; make a proxy with "
            "`exoskel proxy init` or voms-proxy-init, or name one in X509_USER_PROXY"
        )
    return own


def trust_anchors() -> Path:
    """Return the directory of authorities that this user's environment names: ``X509_CERT_DIR``, else the site's."""
    return Path(os.environ.get("X509_CERT_DIR") or "/etc/grid-security/certificates")


def vomsdir() -> Path:
    """Return the vomsdir that this user's environment names: ``X509_VOMS_DIR``, else the site's."""
    return Path(os.environ.get("X509_VOMS_DIR") or "/etc/grid-security/vomsdir")


def grid_trust(
    credential: str | os.PathLike[str],
    anchors: str | os.PathLike[str] | None,
    voms: str | os.PathLike[str] | None,
) -> tuple[Path | None, Path | None]:
    """Return the trust directories that go with a credential.

    Parameters
    ----------
    credential : path
        The own credential.
    anchors, voms : path, optional
        Those that were asked for.

    Returns
    -------
    anchors, voms : Path or None
        What was asked for; for a grid credential else the directories of the environment; nothing for one of a private authority, which
        brings its own.
    """
    if anchors is None:
        if voms is None and not is_of_grid(credential):
            return None, None
        anchors = trust_anchors()
    if voms is None and vomsdir().is_dir():
        voms = vomsdir()
    return Path(anchors), None if voms is None else Path(voms)


def is_of_grid(credential: str | os.PathLike[str]) -> bool:
    """Say whether a file holds a grid credential: one whose certificate states no role of ours. What can't be read is none."""
    from . import _core

    try:
        with open(credential, "rb") as file:
            leaf, *_ = _core.certificates_of(file.read(1 << 23))
    except (CredentialError, OSError):
        return False
    return not _core.states_role(leaf)


def read_private(path: Path, bytes_max: int = 1 << 20, *, is_pem: bool = False) -> bytes:
    """Read a secret file, unless others can read it too.

    Parameters
    ----------
    path : Path
        The file.
    bytes_max : int
        How long it may be.
    is_pem : bool
        Whether a key in it must be PEM. A file without one is then no secret, and others may read it.

    Returns
    -------
    bytes
        Its content.

    Raises
    ------
    CredentialError
        If others can read it, if it is no regular file, empty, too long, or holds certificates only.
    """
    import stat

    # Without the flag, opening a named pipe would wait for a writer for ever.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        os.close(descriptor)
        raise CredentialError(f"{path} is no regular file")
    with open(descriptor, "rb") as file:
        mode = stat.S_IMODE(facts.st_mode)
        content = file.read(bytes_max + 1)
        if not content:
            raise CredentialError(f"{path} is empty, expected a private key")
        # A forgotten --key is no leak: nobody is to renew a key because of the mode of a certificate.
        has_key = b" PRIVATE KEY-----" in content
        if b"-----BEGIN CERTIFICATE-----" in content and not has_key:
            raise CredentialError(
                f"{path} holds a certificate without its private key, expected both in it, or the key's own file named beside it"
            )
        if mode & 0o077 and (has_key or not is_pem):
            raise CredentialError(
                f"others can read the secret in {path} (mode {mode:04o}, expected 0600 or 0400): run chmod 600 {path}, and if others "
                "use this machine, get a new key"
            )
    if len(content) > bytes_max:
        raise CredentialError(f"{path} has more than {bytes_max} bytes")
    return content
