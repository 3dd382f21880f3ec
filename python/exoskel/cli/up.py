"""``exoskel up``: start workers on hosts over the OpenSSH client.

The credential travels on the standard input of ssh into a file that only its owner can read, never on a command line.
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ExoskelError
from ..hosts import HostAddress, UnixAddress, parse_address, read_hosts
from ..ssh_commands import SSH, hint_of, python_words
from ..start_options import number_of_slots, worker_words
from . import pki, policy
from .report import Commands, report, table

__all__ = ["add_commands"]

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
        "A worker that runs already goes on as it is, but gets another policy. Hosts may share one home. Exoskel must be installed there (see `make wheel`). "
        "Exit code 1 if a host failed.",
    )
    parser.add_argument(
        "hosts",
        type=Path,
        metavar="HOSTS",
        help="a file with one `host:port NAME` a line; NAME is the name in the worker's certificate, where it isn't that of the host. "
        "Then, for this host only: python=PATH, slots=N, listen=ADDRESS:PORT, or an option of `exoskel worker` such as dead-after=30",
    )
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
        "--slots",
        type=number_of_slots,
        metavar="N",
        help="slots on each host (default: one per usable core)",
    )
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        help="a policy to copy along, to workers that run already too",
    )
    parser.add_argument(
        "--python",
        default="python3",
        metavar="PATH",
        help="the Python of the hosts that has Exoskel (default: python3)",
    )
    parser.add_argument(
        "--ssh",
        type=_command,
        default=shlex.join(SSH),
        metavar="COMMAND",
        help="the ssh client and its options (default: %(default)s)",
    )
    parser.add_argument(
        "--announce",
        action="store_true",
        help="have the workers that are started say on their networks that they are there (exoskel worker --announce)",
    )
    parser.add_argument("--stop", action="store_true", help="stop the workers instead")
    parser.set_defaults(run=_up)


class _Outcome(NamedTuple):
    """What became of one host."""

    state: str
    """``started``, ``running``, ``stopped``, ``not running`` or ``failed``."""
    answer: str
    """What there is to say of it; of one that failed, why."""


def _up(arguments: argparse.Namespace) -> int:
    hosts = [_over_ssh(address) for address in read_hosts(arguments.hosts)]
    if arguments.policy is not None:
        policy.check(arguments.policy)
    if arguments.credential is None and not arguments.stop:
        pki.check_authority(arguments.directory)
    action: Callable[[argparse.Namespace, HostAddress], _Outcome] = (
        _stop if arguments.stop else _start
    )
    outcomes: dict[HostAddress, _Outcome] = {}
    pool = ThreadPoolExecutor(min(_AT_ONCE_MAX, len(hosts)))
    try:
        running = {pool.submit(action, arguments, host): host for host in hosts}
        for future in as_completed(running):
            host = running[future]
            try:
                outcomes[host] = future.result()
            except (ExoskelError, OSError, ValueError) as error:
                outcomes[host] = _Outcome("failed", str(error))
            if not arguments.json:
                # Why a host failed stands in the table.
                line = f"[{len(outcomes)}/{len(hosts)}] {host}: {outcomes[host].state}"
                print(line, file=sys.stderr, flush=True)
    finally:
        # After Ctrl-C, hosts whose turn has not come are left alone.
        pool.shutdown(cancel_futures=True)
    rows = [(str(host), *outcomes[host]) for host in hosts]
    failed = sum(state == "failed" for _, state, _ in rows)
    end = "stopped" if arguments.stop else "run"
    count = f"{len(hosts) - failed} of {len(hosts)} {end}"
    report(
        arguments,
        f"{table(('host', 'state', 'answer'), rows)}\n{count}",
        {
            "hosts": [
                {"host": host, "done": state != "failed", "state": state, "answer": answer}
                for host, state, answer in rows
            ]
        },
    )
    return 1 if failed else 0


def _command(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected a command such as {shlex.join(SSH)!r}, with its quotes closed"
        )
    return words


def _over_ssh(address: HostAddress | UnixAddress) -> HostAddress:
    if isinstance(address, UnixAddress):
        raise ExoskelError(
            f"got {address} among the hosts, expected host:port: a worker at a Unix socket runs on this machine, start it with "
            f"`exoskel worker --listen {address}`"
        )
    return address


def _start(arguments: argparse.Namespace, host: HostAddress) -> _Outcome:
    # Before anything is issued: a worker that runs keeps its certificate.
    there = _ssh(arguments, host, _worker(arguments, host, "--status"), b"", may_fail=True)
    if there.get("running"):
        name = there.get("name")
        if name and name != host.name:
            raise ExoskelError(
                f"a worker runs there as {name}, expected {host.name}: correct the name in the line, or stop that worker first (--stop)"
            )
        told = _told(there, "process", "log")
        if arguments.policy is not None:
            told += f", {_replace_policy(arguments, host, str(there.get('policy') or ''))}"
        return _Outcome("running", told)
    credential = _credential(arguments, host)
    policy_text = b"" if arguments.policy is None else arguments.policy.read_bytes()
    script = start_script(arguments, host, len(credential))
    begun = _ssh(arguments, host, script, credential + policy_text)
    return _Outcome("started", _told(begun, "slots", "process", "log"))


def _replace_policy(arguments: argparse.Namespace, host: HostAddress, there: str) -> str:
    """Give a worker that runs the policy, which it reads again when it changes; return what became of it."""
    if not there:
        raise ExoskelError(
            "the worker that runs there has no policy, and can't get one while it runs: stop it (--stop), then start it with --policy"
        )
    answer = _ssh(
        arguments, host, policy_script(_listens_at(host).port, there), arguments.policy.read_bytes()
    )
    return "policy replaced" if answer.get("replaced") else "the same policy"


def _stop(arguments: argparse.Namespace, host: HostAddress) -> _Outcome:
    ended = _ssh(arguments, host, _worker(arguments, host, "--stop"), b"")
    if not ended.get("stopped"):
        return _Outcome("not running", "no worker was running in the background")
    return _Outcome("stopped", "it had to be killed" if ended.get("killed") else "")


def _told(answer: dict[str, Any], *names: str) -> str:
    """Return what a host said under some names, if it did."""
    told = ", ".join(f"{name} {answer[name]}" for name in names if name in answer)
    return told[:_ANSWER_CHARACTERS_MAX]


def _listens_at(host: HostAddress) -> HostAddress:
    """Return where the worker listens: on all addresses of its host, unless the line says another."""
    address = parse_address(dict(host.options).get("listen", "0.0.0.0"), host.port)
    assert isinstance(address, HostAddress), "the line was checked when it was read"
    return address


def _worker(arguments: argparse.Namespace, host: HostAddress, *words: str) -> str:
    """Return the command that speaks to a host's worker. What comes of the hosts file is quoted."""
    python = dict(host.options).get("python", arguments.python)
    listen = ["--listen", f"tcp://{_listens_at(host)}"]
    rest = ["-m", "exoskel", "worker", "--json", *listen, *words]
    return f"exec {python_words(python, rest)}"


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
        The script. What comes of the hosts file is a number, or quoted.
    """
    words = ["--background", *worker_words(host.options)]
    if arguments.slots is not None and "slots" not in dict(host.options):
        words.append(f"--slots={int(arguments.slots)}")
    if arguments.announce:
        words.append("--announce")
    steps = [
        "umask 077",
        'mkdir -p "$HOME/.exoskel/run"',
        'chmod 700 "$HOME/.exoskel/run"',
        *_to_its_files(_listens_at(host).port),
        # What is there is removed, and `set -C` makes a new file or none: nothing is written through a link.
        'rm -f "$base.pem.new" "$base.toml.new"',
        "set -C",
        # Renamed, so that a worker never reads half a file, and never into a file that others may read already.
        f'head -c {credential_bytes} > "$base.pem.new"',
        'mv "$base.pem.new" "$base.pem"',
    ]
    files = '--credential "$PWD/$base.pem"'
    if arguments.policy is not None:
        steps += ['cat > "$base.toml.new"', 'mv "$base.toml.new" "$base.toml"']
        files += ' --policy "$PWD/$base.toml"'
    steps.append(f"{_worker(arguments, host, *words)} {files}")
    return " && ".join(steps)


def policy_script(port: int, there: str) -> str:
    """Return what the shell of a host does to replace the policy of a worker that runs by what comes on standard input.

    Parameters
    ----------
    port : int
        Where the worker listens.
    there : str
        The path of the file that it reads.

    Returns
    -------
    str
        The script. It replaces no file but the one that `start_script` made; the path is quoted.
    """
    path = shlex.quote(there)
    other = json.dumps(
        {
            "error": "the worker that runs there reads a policy that is not of `exoskel up`: change that file on its host (--status names it)"
        }
    )
    steps = [
        "umask 077",
        *_to_its_files(port),
        f"""{{ [ "$base.toml" -ef {path} ] || {{ echo {shlex.quote(other)}; exit 1; }}; }}""",
        'rm -f "$base.toml.new"',
        "set -C",
        'cat > "$base.toml.new"',
        """if cmp -s "$base.toml.new" "$base.toml"; then rm -f "$base.toml.new"; echo '{"replaced": false}'; """
        """else mv "$base.toml.new" "$base.toml" && echo '{"replaced": true}'; fi""",
    ]
    return " && ".join(steps)


def _to_its_files(port: int) -> list[str]:
    """Return the steps to the files of a worker, named as `background` does: hosts may share this directory."""
    return ['cd "$HOME/.exoskel/run"', f'base="worker-$(uname -n | tr / -)-{port}"']


def _credential(arguments: argparse.Namespace, host: HostAddress) -> bytes:
    if arguments.credential is None:
        return pki.issue(arguments.directory, "worker", host.name)[0]
    return Path(arguments.credential.replace("{name}", host.name)).read_bytes()


def _ssh(
    arguments: argparse.Namespace,
    host: HostAddress,
    script: str,
    stdin: bytes,
    *,
    may_fail: bool = False,
) -> dict[str, Any]:
    """Have the shell of a host do something; return the JSON object that it answers with, in spite of its exit code if it `may_fail`."""
    command = [*arguments.ssh, "--", host.host, script]
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=_HOST_SECONDS, check=False
        )
    except FileNotFoundError:
        raise ExoskelError(f"{command[0]} not found: install the OpenSSH client") from None
    except subprocess.TimeoutExpired:
        raise ExoskelError(f"no answer within {_HOST_SECONDS:g} seconds") from None
    output = done.stdout.decode("utf-8", "replace").strip()
    answer = _answer(output)
    error = None if answer is None else answer.get("error")
    if answer is not None and error is None and (done.returncode == 0 or may_fail):
        return answer
    said = str(error or "") or done.stderr.decode("utf-8", "replace").strip() or output
    ended = f"exit code {done.returncode}" if done.returncode else "it ended without an answer"
    last = said.splitlines()[-1] if said else ended
    python = dict(host.options).get("python", arguments.python)
    hint = hint_of(done.returncode, last, python, "--python")
    raise ExoskelError(f"{last.removeprefix('exoskel: error: ')[:_ANSWER_CHARACTERS_MAX]}{hint}")


def _answer(output: str) -> dict[str, Any] | None:
    """Return the JSON object in the last line of what a host said, if it is one. Before it stands what the host's shell says to everybody."""
    last = output.splitlines()[-1] if output else ""
    try:
        found = json.loads(last)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
