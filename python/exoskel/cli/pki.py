"""``exoskel pki``: a private certification authority in a directory, and the credentials it issues."""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from ..errors import CredentialError
from .report import Commands, duration, moment, report, table

__all__ = ["DEFAULT_DIRECTORY", "add_commands", "check_authority", "issue"]

DEFAULT_DIRECTORY = Path("~/.exoskel/pki").expanduser()
_ROLES = ("manager", "worker", "gateway", "agent", "peer")
_DAYS = 90.0


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``pki init``, ``issue``, ``renew``, ``revoke`` and ``list``."""
    parser = commands.add_parser(
        "pki", help="make a private certification authority; issue, renew and revoke credentials"
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    place = argparse.ArgumentParser(add_help=False)
    place.add_argument(
        "--directory",
        type=Path,
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="where the authority is (default: ~/.exoskel/pki)",
    )

    init = actions.add_parser("init", parents=[common], help="make an authority in a new directory")
    init.add_argument(
        "directory",
        type=Path,
        nargs="?",
        default=DEFAULT_DIRECTORY,
        metavar="DIR",
        help="default: ~/.exoskel/pki",
    )
    init.set_defaults(run=_init)

    issue_ = actions.add_parser(
        "issue", parents=[common, place], help="issue a credential: certificate and key in one file"
    )
    issue_.add_argument("--role", choices=_ROLES, required=True, help="what its holder may be")
    issue_.add_argument(
        "--name",
        required=True,
        help="whose it is: the host name of a worker, the user of a manager",
    )
    issue_.add_argument(
        "--days", type=_days, default=_DAYS, help="how long it is valid (default: %(default)g)"
    )
    issue_.add_argument(
        "--output", type=Path, metavar="FILE", help="where to write it (default: ROLE-NAME.pem)"
    )
    issue_.add_argument("--force", action="store_true", help="replace the file if it is there")
    issue_.set_defaults(run=_issue)

    renew = actions.add_parser(
        "renew",
        parents=[common, place],
        help="renew a credential in its file, or the revocation list of the authority",
        description="Renew the credential in FILE: the same role and name, a new key and certificate, and the current revocation list. "
        "The file is replaced whole. A worker or manager that runs reads it within seconds. The old certificate stays valid until it "
        "ends. With --list, sign the revocation list of the authority anew.",
    )
    what = renew.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "file", type=Path, nargs="?", metavar="FILE", help="a credential of this authority"
    )
    what.add_argument(
        "--list", action="store_true", help="renew the revocation list, DIR/revoked.crl"
    )
    renew.add_argument(
        "--days",
        type=_days,
        help="how long the new one is valid (default: as long as the old credential, at least 90 days if that has expired; 90 for a list)",
    )
    renew.set_defaults(run=_renew)

    revoke = actions.add_parser(
        "revoke", parents=[common, place], help="revoke credentials by name or serial number"
    )
    revoke.add_argument("what", metavar="NAME|SERIAL", help="as `exoskel pki list` shows it")
    revoke.set_defaults(run=_revoke)

    list_ = actions.add_parser("list", parents=[common, place], help="list what was issued")
    list_.set_defaults(run=_list)


def issue(directory: Path, role: str, name: str, days: float = _DAYS) -> tuple[bytes, str]:
    """Issue a credential.

    Parameters
    ----------
    directory : Path
        Where the authority is.
    role, name : str
        What it shall prove.
    days : float
        How long it is valid.

    Returns
    -------
    pem : bytes
        Certificate, key, authority and revocation list; secret.
    serial : str
        Its serial number.
    """
    from .. import _core

    _check_directory(directory)
    return _core.pki_issue(os.fspath(directory), role, name, days)


def check_authority(directory: Path) -> None:
    """See that a directory holds an authority that can issue credentials.

    Parameters
    ----------
    directory : Path
        Where the authority should be.

    Raises
    ------
    ValueError, ExoskelError
        If there is none, or it is damaged.
    """
    from .. import _core

    _check_directory(directory)
    _core.pki_list(os.fspath(directory))


def _init(arguments: argparse.Namespace) -> int:
    from .. import _core

    directory: Path = arguments.directory
    _core.pki_init(os.fspath(directory))
    option = "" if directory == DEFAULT_DIRECTORY else f" --directory {directory}"
    report(
        arguments,
        f"made an authority in {directory}\n"
        "keep this directory secret: who reads ca.key in it can be any worker and any manager\n"
        f"next: exoskel pki issue{option} --role worker --name HOST (for programs with links: --role peer)",
        {"directory": directory},
    )
    return 0


def _issue(arguments: argparse.Namespace) -> int:
    from .. import _core

    output: Path = arguments.output or Path(f"{arguments.role}-{_file_name(arguments.name)}.pem")
    # A link that leads nowhere is something, too.
    if os.path.lexists(output) and not arguments.force:
        raise ValueError(f"{output} exists; choose another --output, or replace it with --force")
    pem, serial = issue(arguments.directory, arguments.role, arguments.name, arguments.days)
    _core.write_credential(os.fspath(output), pem)
    report(
        arguments,
        f"wrote {output}: {arguments.role} {arguments.name}, valid {_validity(arguments.days)}, serial {serial}\n"
        "it holds a secret key: bring it to its owner over a safe way, readable by nobody else (0600)",
        {
            "file": output,
            "role": arguments.role,
            "name": arguments.name,
            "days": arguments.days,
            "serial": serial,
        },
    )
    return 0


def _renew(arguments: argparse.Namespace) -> int:
    from .. import _core

    _check_directory(arguments.directory)
    directory = os.fspath(arguments.directory)
    if arguments.list:
        file = arguments.directory / "revoked.crl"
        until = _core.pki_renew_list(directory, arguments.days)
        report(
            arguments,
            f"renewed {file}: good until {moment(until)}\n"
            "copy it to every host that has it; workers and managers that run read it within seconds",
            {"list": file, "not_after": until},
        )
        return 0
    # The file that a link leads to is what processes read.
    file = Path(os.path.realpath(arguments.file))
    renewed = _core.pki_renew(directory, file, arguments.days or _days_after_expiry(file))
    _core.write_credential(file, renewed.pop("pem"))
    ends = moment(renewed["old_not_after"])
    is_over = renewed["old_not_after"] <= time.time()
    report(
        arguments,
        f"renewed {file}: {renewed['role']} {renewed['name']}, a new key, valid until {moment(renewed['new_not_after'])}, "
        f"serial {renewed['new_serial']}\n"
        f"the old certificate, serial {renewed['old_serial']}, "
        + (
            f"expired on {ends}"
            if is_over
            else f"stays valid until {ends}; to end it now: exoskel pki revoke SERIAL"
        ),
        {"file": file, **renewed},
    )
    return 0


def _days_after_expiry(file: Path) -> float | None:
    """Return for how long to renew a credential that has expired: it may have been a short one by mistake. None if it has not expired."""
    from .. import _core

    try:
        leaf, *_ = _core.certificates_of(file.read_bytes())
    except CredentialError:
        # Whoever reads it whole says what is wrong with it.
        return None
    (old,) = _core.chain_details([leaf])["certificates"]
    if old["not_after"] > time.time():
        return None
    days: float = (old["not_after"] - old["not_before"]) / 86_400
    return max(_DAYS, days)


def _revoke(arguments: argparse.Namespace) -> int:
    from .. import _core

    _check_directory(arguments.directory)
    serials = _core.pki_revoke(os.fspath(arguments.directory), arguments.what)
    if not serials:
        raise ValueError(
            f"nothing was issued to {arguments.what!r} that isn't revoked already; see exoskel pki list"
        )
    report(
        arguments,
        f"revoked {', '.join(serials)}\n"
        f"peers refuse it once they have the new list: {arguments.directory / 'revoked.crl'} "
        "(credentials that are issued from now on hold it)",
        {"revoked": serials, "list": arguments.directory / "revoked.crl"},
    )
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from .. import _core

    _check_directory(arguments.directory)
    entries = _core.pki_list(os.fspath(arguments.directory))
    titles = ("role", "name", "serial", "until", "state")
    rows = [
        (entry["role"], entry["name"], entry["serial"], _day(entry), _state(entry))
        for entry in entries
    ]
    report(
        arguments, table(titles, rows) if rows else "nothing was issued yet", {"issued": entries}
    )
    return 0


def _day(entry: dict[str, Any]) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(entry["not_after"]))


def _state(entry: dict[str, Any]) -> str:
    if entry.get("revoked"):
        return "revoked"
    return "expired" if entry["not_after"] < time.time() else "valid"


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        option = "" if directory == DEFAULT_DIRECTORY else f" {directory}"
        raise ValueError(
            f"there is no authority in {directory}; make one with: exoskel pki init{option}"
        )


def _file_name(name: str) -> str:
    """Return a name without what a file system or a shell could misread."""
    return "".join(
        character if character.isalnum() or character in ".-_" else "_" for character in name
    ).lstrip(".-")


def _validity(days: float) -> str:
    """Return a number of days in words, less than one in hours, minutes and seconds."""
    if days < 1:
        return duration(round(days * 86_400))
    return f"{days:g} day{'s' if days != 1 else ''}"


def _days(text: str) -> float:
    try:
        days = float(text)
    except ValueError:
        days = 0
    if not 0 < days <= 3650:
        raise argparse.ArgumentTypeError(f"got {text}, expected more than 0 and at most 3650 days")
    return days
