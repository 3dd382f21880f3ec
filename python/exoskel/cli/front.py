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
        description="Terminate TLS for the HTTP server at --upstream, and let in grid users with a good identity. Headers tell the server "
        "who asks: Exoskel-Subject, Exoskel-VO, Exoskel-FQAN, Exoskel-Actions, Exoskel-Account and Client-Cert. The policy and its "
        "lists are in force within a second of a change of their files, trust and host certificate within --trust-interval. So check a copy "
        "(--policy COPY --check) and rename it into its place. SIGHUP reads all of these at once, says what has changed, and opens the logs "
        "again; the configuration is read at the start only. SIGTERM and Ctrl-C end the front in order. The configuration file can "
        "say all this and more, such as rules by path and method: docs/administration.md explains it.",
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
        "--access-log",
        metavar="FILE",
        help="where requests are written, a line of JSON for each: a file, stderr or none (default)",
    )
    parser.add_argument(
        "--refusals",
        choices=("http", "tls"),
        help="how clients are refused whom the policy refuses: http (default) answers 403 with the reason, tls ends the handshake",
    )
    parser.add_argument(
        "--monitor", metavar="ADDRESS", help="serve metrics and health here, without TLS"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="read everything that is named here, say what is wrong with it, and end. The exit code is 1 if it can't be used or nobody could "
        "connect, and if the host certificate is out of date. It is 1 as well if a revocation list is stale, missing or unreadable. Run it on a copy, before a "
        "file is put in its place",
    )
    parser.set_defaults(run=_front)


def _front(arguments: argparse.Namespace) -> int:
    from .. import _core, service

    names = ("configuration", "listen", "upstream", "secret", "chain", "certificate", "key")
    more = (
        "trust_anchors",
        "vomsdir",
        "trust_interval",
        "policy",
        "audit",
        "access_log",
        "refusals",
        "monitor",
    )
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
