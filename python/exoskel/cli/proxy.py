"""``exoskel proxy``: look at proxy certificates, make them, and delegate without sending a key."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from ..errors import CredentialError
from ..identity import (
    CredentialFiles,
    current_credential,
    own_certificate,
    proxy_path,
    read_private,
)
from ..peer_text import one_line
from . import judgement
from .report import Commands, moment, report

__all__ = ["add_commands"]

_HOURS_MAX = 24.0 * 366


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``proxy info``, ``init``, ``request``, ``sign`` and ``store``."""
    parser = commands.add_parser(
        "proxy", help="look at proxy certificates, make them, delegate them"
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    info = actions.add_parser(
        "info",
        parents=[common],
        help="show what a proxy says, and whether the trust directories here accept it",
        description="Show what a credential says (as voms-proxy-info -all does), and whether this trust store accepts it, with the reason "
        "if not. No server is asked. Exit code 0 if it is accepted, 1 if not.",
    )
    info.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="certificates, leaf first; a key among them is not looked at (default: the current credential)",
    )
    judgement.add_trust(info)
    judgement.add_time(info)
    judgement.add_rules(info)
    info.set_defaults(run=_info)

    wishes = argparse.ArgumentParser(add_help=False)
    wishes.add_argument(
        "--hours",
        type=_hours,
        default=12.0,
        metavar="H",
        help="how long it is valid, never longer than what signs it (default: %(default)g)",
    )
    wishes.add_argument(
        "--limited", action="store_true", help="make it a limited one, which must not start jobs"
    )
    wishes.add_argument(
        "--path-length",
        type=int,
        metavar="N",
        help="allow at most N proxies below it (default: any)",
    )
    wishes.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="the certificate that signs it: PEM, or PKCS#12 with its key",
    )
    wishes.add_argument("--key", type=Path, metavar="FILE", help="its key, PEM, locked or not")
    wishes.add_argument(
        "--pass-phrase-stdin",
        action="store_true",
        help="read the key's pass phrase from standard input, one line, instead of asking for it",
    )

    kind = argparse.ArgumentParser(add_help=False)
    kind.add_argument(
        "--key-type",
        choices=("p256", "rsa2048"),
        default="p256",
        help="the new key: ECDSA on P-256, or RSA for servers that know nothing else (default: %(default)s)",
    )

    destination = argparse.ArgumentParser(add_help=False)
    destination.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="where to write the proxy, 0600 (default: X509_USER_PROXY, else /tmp/x509up_uUID)",
    )

    init = actions.add_parser(
        "init",
        parents=[common, wishes, kind, destination],
        help="make a proxy of your certificate",
        description="Make a proxy (RFC 3820) of your certificate: --certificate and --key, else X509_USER_CERT and X509_USER_KEY, else "
        "~/.globus/usercert.pem and userkey.pem, else ~/.globus/usercred.p12. Attributes of a virtual organisation come from a VOMS "
        "server: use voms-proxy-init for those, its proxies are good here as they are.",
    )
    init.set_defaults(run=_init)

    request = actions.add_parser(
        "request",
        parents=[common, kind],
        help="make a key here, and a request that somebody else can sign",
        description="The first of three steps by which somebody delegates to this side without any key on the wire: request here, "
        "`exoskel proxy sign` there, `exoskel proxy store` here.",
    )
    request.add_argument(
        "--key",
        type=Path,
        required=True,
        metavar="FILE",
        help="where to write the new key, 0600; nothing may be there",
    )
    request.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="where to write the request; no secret",
    )
    request.set_defaults(run=_request)

    sign = actions.add_parser(
        "sign",
        parents=[common, wishes],
        help="delegate: sign a proxy for a key that never left the other side",
        description="Sign a proxy for the key in a request, by the current credential (see `exoskel whoami`) unless --certificate names "
        "another. Whoever holds that key can then act as you until the proxy ends.",
    )
    sign.add_argument("request", type=Path, metavar="REQUEST", help="from `exoskel proxy request`")
    sign.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="where to write the signed chain; no secret",
    )
    sign.set_defaults(run=_sign)

    store = actions.add_parser(
        "store",
        parents=[common, destination],
        help="put a signed chain and the key that stayed here into one file",
    )
    store.add_argument("chain", type=Path, metavar="CHAIN", help="from `exoskel proxy sign`")
    store.add_argument(
        "--key", type=Path, required=True, metavar="FILE", help="from `exoskel proxy request`"
    )
    store.set_defaults(run=_store)


def _info(arguments: argparse.Namespace) -> int:
    from .. import _core

    path: Path = arguments.file or current_credential().certificate
    content = path.read_bytes()
    try:
        chain = _core.certificates_of(content)
    except CredentialError as error:
        verdict = judgement.refuse(str(error), arguments)
    else:
        verdict = judgement.judge(chain, arguments)
    report(arguments, "\n".join(verdict.lines(path)), {"file": path, **verdict.data()})
    return 0 if verdict.accepted else 1


def _init(arguments: argparse.Namespace) -> int:
    from .. import _core

    proxies = _proxies()
    files = _named(arguments) or own_certificate()
    if files is None:
        raise CredentialError(
            "there is no certificate to make a proxy of: no X509_USER_CERT, no ~/.globus/usercert.pem; name one with --certificate and --key"
        )
    issuer = proxies.read_issuer(files, _asker(arguments))
    content, proxy = proxies.make(issuer, _wishes(arguments), arguments.key_type)
    out: Path = arguments.out or proxy_path()
    _core.write_secret(out, content)
    return _say_written(arguments, out, proxy, secret=True)


def _request(arguments: argparse.Namespace) -> int:
    from .. import _core

    # Every other command reads the key that --key names: this one must not make an end of it, nor of one that waits for its chain.
    if os.path.lexists(arguments.key):
        raise CredentialError(
            f"{arguments.key} is there already, expected a new name for the new key: remove it if nothing needs it any more"
        )
    key, request = _proxies().request(arguments.key_type)
    # In this order: a request without its key harms nobody, and a key that is there would stand in the way of the next attempt.
    _core.write_public(arguments.out, request)
    _core.write_secret(arguments.key, key)
    report(
        arguments,
        f"wrote the key {arguments.key}: it stays here\n"
        f"wrote the request {arguments.out}: bring it to whoever delegates, for `exoskel proxy sign`",
        {"key": arguments.key, "request": arguments.out},
    )
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    from .. import _core

    proxies = _proxies()
    files = _named(arguments) or current_credential()
    issuer = proxies.read_issuer(files, _asker(arguments))
    with open(arguments.request, "rb") as file:
        request = file.read(1 << 20)
    chain, proxy = proxies.sign(issuer, _wishes(arguments), request)
    _core.write_public(arguments.out, chain)
    return _say_written(arguments, arguments.out, proxy, secret=False)


def _store(arguments: argparse.Namespace) -> int:
    from .. import _core

    with open(arguments.chain, "rb") as file:
        chain = file.read(1 << 20)
    key = read_private(arguments.key)
    content, proxy = _proxies().complete(chain, key, arguments.key)
    out: Path = arguments.out or proxy_path()
    _core.write_secret(out, content)
    return _say_written(arguments, out, proxy, secret=True)


def _say_written(arguments: argparse.Namespace, out: Path, proxy: Any, *, secret: bool) -> int:
    end = int(proxy.not_valid_after_utc.timestamp())
    subject = one_line(proxy.subject.rfc4514_string())
    more = (
        "it holds a secret key: who reads it can act as you"
        if secret
        else "it holds no secret: bring it back, for `exoskel proxy store`"
    )
    report(
        arguments,
        f"wrote {out}: {subject}, until {moment(end)}\n{more}",
        {"file": out, "subject": subject, "expires": end},
    )
    return 0


def _proxies() -> Any:
    try:
        from .. import proxies
    except ImportError as error:
        raise CredentialError(
            f"making proxies needs the package cryptography, which can't be loaded here ({error}): pip install cryptography"
        ) from error
    return proxies


def _wishes(arguments: argparse.Namespace) -> Any:
    return _proxies().Wishes(arguments.hours, arguments.limited, arguments.path_length)


def _named(arguments: argparse.Namespace) -> CredentialFiles | None:
    """Return the files that the options name, or None if they name none."""
    certificate: Path | None = arguments.certificate
    if certificate is None:
        if arguments.key is not None:
            raise ValueError("--key goes with --certificate")
        return None
    return CredentialFiles(certificate, arguments.key or certificate, "--certificate")


def _asker(arguments: argparse.Namespace) -> Any:
    def ask(prompt: str) -> str:
        if arguments.pass_phrase_stdin:
            return sys.stdin.readline().rstrip("\n")
        import getpass

        # Without a terminal the standard library would read what is typed in the clear.
        try:
            os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
        except OSError:
            raise CredentialError(
                f"{prompt.removesuffix(': ')}: there is no terminal to ask at; use --pass-phrase-stdin"
            ) from None
        return getpass.getpass(prompt)

    return ask


def _hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0
    if not 0 < hours <= _HOURS_MAX:
        raise argparse.ArgumentTypeError(
            f"got {text}, expected more than 0 and at most {_HOURS_MAX:g} hours"
        )
    return hours
