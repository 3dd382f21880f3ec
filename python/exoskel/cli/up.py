"""``exoskel up``: start workers on hosts over the OpenSSH client.

The credential travels on the standard input of ssh into a file that only its owner can read, never on a command line.
"""

import argparse
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from ..errors import ExoskelError
from ..hosts import HostAddress, UnixAddress, read_hosts
from ..peer_text import one_line
from . import pki
from .report import Commands, report, table

__all__ = ["add_commands"]

_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"
_AT_ONCE_MAX = 16
_HOST_SECONDS = 60.0
# Of what a host answers: it has one line to say.
_ANSWER_CHARACTERS_MAX = 1000


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``up``."""
    parser = commands.add_parser(
        "up",
        parents=[common],
        help="start workers on hosts over ssh",
        description="Start a worker on each host of a file over the OpenSSH client, with keys or an agent (it never asks for a password). "
        "Exoskel must be installed there (see `make wheel`).",
    )
    parser.add_argument("hosts", type=Path, metavar="HOSTS", help="host:port, one a line")
    parser.add_argument(
        "--credential",
        metavar="FILE",
        help="the credential to copy; {name} in it stands for each worker's name (default: issue one for each host)",
    )
    parser.add_argument(
        "--directory",
        type=Path,
        default=pki.DEFAULT_DIRECTORY,
        metavar="DIR",
        help="the authority that issues credentials (default: ~/.exoskel/pki)",
    )
    parser.add_argument(
        "--slots", type=int, metavar="N", help="slots on each host (default: one per usable core)"
    )
    parser.add_argument("--policy", type=Path, metavar="FILE", help="a policy to copy along")
    parser.add_argument(
        "--python",
        default="python3",
        metavar="PATH",
        help="the Python of the hosts that has Exoskel (default: python3)",
    )
    parser.add_argument(
        "--ssh",
        default=_SSH,
        metavar="COMMAND",
        help="the ssh client and its options (default: %(default)s)",
    )
    parser.add_argument("--stop", action="store_true", help="stop the workers instead")
    parser.set_defaults(run=_up)


def _up(arguments: argparse.Namespace) -> int:
    hosts = [_over_ssh(address) for address in read_hosts(arguments.hosts)]
    action: Callable[[argparse.Namespace, HostAddress], str] = _stop if arguments.stop else _start
    outcomes: dict[HostAddress, tuple[bool, str]] = {}
    with ThreadPoolExecutor(min(_AT_ONCE_MAX, len(hosts))) as pool:
        running = {pool.submit(action, arguments, host): host for host in hosts}
        for future in as_completed(running):
            host = running[future]
            try:
                outcomes[host] = (True, future.result())
            except (ExoskelError, OSError, ValueError) as error:
                outcomes[host] = (False, str(error))
            if not arguments.json:
                done, text = outcomes[host]
                print(
                    f"[{len(outcomes)}/{len(hosts)}] {host}: {'' if done else 'failed: '}{one_line(text)}",
                    file=sys.stderr,
                    flush=True,
                )
    rows = [
        (str(host), "done" if outcomes[host][0] else "failed", outcomes[host][1]) for host in hosts
    ]
    failed = sum(not done for done, _ in outcomes.values())
    report(
        arguments,
        table(("host", "state", "answer"), rows),
        {
            "hosts": [
                {"host": host, "done": state == "done", "answer": answer}
                for host, state, answer in rows
            ]
        },
    )
    return 1 if failed else 0


def _over_ssh(address: HostAddress | UnixAddress) -> HostAddress:
    if isinstance(address, UnixAddress):
        raise ExoskelError(
            f"got {address} among the hosts, expected host:port: a worker at a Unix socket runs on this machine, start it with "
            f"`exoskel worker --listen {address}`"
        )
    return address


def _start(arguments: argparse.Namespace, host: HostAddress) -> str:
    credential = _credential(arguments, host)
    policy = b"" if arguments.policy is None else arguments.policy.read_bytes()
    return _ssh(
        arguments, host, start_script(arguments, host, len(credential)), credential + policy
    )


def _stop(arguments: argparse.Namespace, host: HostAddress) -> str:
    python = shlex.quote(arguments.python)
    return _ssh(
        arguments,
        host,
        f"exec {python} -m exoskel worker --listen tcp://0.0.0.0:{host.port} --stop",
        b"",
    )


def start_script(arguments: argparse.Namespace, host: HostAddress, credential_bytes: int) -> str:
    """Return what the shell of a host does: keep the files that come on standard input, and start the worker.

    Parameters
    ----------
    arguments : argparse.Namespace
        Those of the command.
    host : HostAddress
        The host.
    credential_bytes : int
        How much of the input is the credential; the policy follows.

    Returns
    -------
    str
        The script. Nothing in it comes from the hosts file but a number.
    """
    base = f"worker-{host.port}"
    options = [
        f'--listen tcp://0.0.0.0:{host.port} --credential "$HOME/.exoskel/run/{base}.pem" --background'
    ]
    if arguments.slots is not None:
        options.append(f"--slots {int(arguments.slots)}")
    steps = [
        "umask 077",
        'mkdir -p "$HOME/.exoskel/run"',
        'chmod 700 "$HOME/.exoskel/run"',
        'cd "$HOME/.exoskel/run"',
        # What is there is removed, and `set -C` makes a new file or none: nothing is written through a link.
        f"rm -f {base}.pem.new {base}.toml.new",
        "set -C",
        # Renamed, so that a worker never reads half a file, and never into a file that others may read already.
        f"head -c {credential_bytes} > {base}.pem.new",
        f"mv {base}.pem.new {base}.pem",
    ]
    if arguments.policy is not None:
        steps += [f"cat > {base}.toml.new", f"mv {base}.toml.new {base}.toml"]
        options.append(f'--policy "$HOME/.exoskel/run/{base}.toml"')
    steps.append(f"exec {shlex.quote(arguments.python)} -m exoskel worker {' '.join(options)}")
    return " && ".join(steps)


def _credential(arguments: argparse.Namespace, host: HostAddress) -> bytes:
    if arguments.credential is None:
        return pki.issue(arguments.directory, "worker", host.name)[0]
    return Path(arguments.credential.replace("{name}", host.name)).read_bytes()


def _ssh(arguments: argparse.Namespace, host: HostAddress, script: str, stdin: bytes) -> str:
    command = [*shlex.split(arguments.ssh), "--", host.host, script]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=_HOST_SECONDS, check=False
        )
    except FileNotFoundError:
        raise ExoskelError(f"{command[0]} not found: install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        raise ExoskelError(f"no answer within {_HOST_SECONDS:g} seconds") from None
    output = done.stdout.decode("utf-8", "replace").strip()
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or output
        last = said.splitlines()[-1] if said else f"exit code {done.returncode}"
        hint = " (does `ssh` to it work without a password?)" if done.returncode == 255 else ""
        hint = hint or (
            f" (is {arguments.python} there? see --python)" if done.returncode == 127 else ""
        )
        hint = hint or (
            " (is Exoskel installed for it?)" if "No module named exoskel" in last else ""
        )
        raise ExoskelError(
            f"{last.removeprefix('exoskel: error: ')[:_ANSWER_CHARACTERS_MAX]}{hint}"
        )
    return output.splitlines()[-1][:_ANSWER_CHARACTERS_MAX] if output else "done"
