"""``exoskel front``: grid identity in front of any HTTP server."""

import argparse
import contextlib
from pathlib import Path

from . import judgement
from .report import Commands, report

__all__ = ["add_commands"]


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``front``."""
    parser = commands.add_parser(
        "front",
        parents=[common],
        help="let grid users in to any HTTP server: TLS, proxies and VOMS in front, headers behind",
        description="Terminate TLS for the HTTP server at --upstream, let in who proves to be a good grid user, and state who it is in headers "
        "(Exoskel-Subject, Exoskel-VO, Exoskel-FQAN, Client-Cert). SIGHUP reads trust, rules and host certificate again; SIGTERM and Ctrl-C "
        "end it in order. docs/administration.md explains the configuration file, which can say all this and more.",
    )
    parser.add_argument(
        "--configuration", type=Path, metavar="FILE", help="a configuration; the other options win"
    )
    parser.add_argument(
        "--listen", metavar="ADDRESS", help="address and port in numbers: [::]:8443"
    )
    parser.add_argument(
        "--upstream",
        metavar="ADDRESS",
        help="the server behind: unix:/run/app.sock, or tcp://127.0.0.1:PORT with --secret",
    )
    parser.add_argument(
        "--secret",
        type=Path,
        metavar="FILE",
        help="what front and server share, 0600; a server on a TCP port needs it (make it with: openssl rand -hex 32)",
    )
    parser.add_argument(
        "--chain",
        action="store_true",
        default=None,
        help="send the whole chain too; it can pass a server's limit for headers",
    )
    parser.add_argument(
        "--certificate",
        type=Path,
        metavar="FILE",
        help="the host certificate (default: /etc/grid-security/hostcert.pem)",
    )
    parser.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="its key, 0600 or 0400 (default: /etc/grid-security/hostkey.pem)",
    )
    judgement.add_trust(parser)
    parser.add_argument(
        "--trust-interval",
        type=int,
        metavar="SECONDS",
        help="how often trust directories are looked at (default: 60)",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="who may connect: [[allow.rule]] with the action connect (default: everybody with a good identity)",
    )
    parser.add_argument(
        "--audit",
        metavar="FILE",
        help="where decisions are written: a file, stderr (default) or none",
    )
    parser.add_argument(
        "--monitor", metavar="ADDRESS", help="serve metrics and health here, without TLS"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read everything that is named here, say what is wrong with it, and end",
    )
    parser.set_defaults(run=_front)


def _front(arguments: argparse.Namespace) -> int:
    from .. import _core, service

    names = ("configuration", "listen", "upstream", "secret", "chain", "certificate", "key")
    more = ("trust_anchors", "vomsdir", "trust_interval", "policy", "audit", "monitor")
    options = service.options(**{name: getattr(arguments, name) for name in (*names, *more)})
    if arguments.check:
        notes = _core.check_front(options)
        text = "\n".join(["this configuration can be used", *(f"note: {note}" for note in notes)])
        report(arguments, text, {"usable": True, "notes": notes})
        return 0

    def listening(address: str) -> None:
        report(arguments, f"front listening on https://{address}", {"listen": address})

    # Ctrl-C is the usual end of one that was started by hand.
    with contextlib.suppress(KeyboardInterrupt):
        _core.run_front(options, listening)
    return 0
