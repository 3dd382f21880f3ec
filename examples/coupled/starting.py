"""Start the models of `coupled_climate.py`: on one host, or on several keepers with TCP between them, all on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

COUPLING = Path(__file__).with_name("climate.toml")
RANKS = Path(__file__).with_name("ranks.py")
# Which hosts are in one domain, where data travel in clear: everybody's, each model's own, none.
DOMAINS = {"none": ["*"], "coupler": ["ocean*", "atmosphere*"], "all": []}
JOINING = """
[[allow.rule]]
action = ["coupler.join", "coupler.report", "coupler.stay"]
name = "*.example.org"
"""
DOMAIN = """
[domain.d{number}]
addresses = ["127.0.0.0/8"]
names = ["{names}.example.org"]
[[rule]]
from = "d{number}"
to = "d{number}"
protection = "plain"
"""


def start(
    words: list[str], folder: Path, processes: dict[str, int], hosts: int, protection: str
) -> None:
    """Run the models to their end; each process leaves a file in the folder.

    `words` are the script with its options; the model's name comes behind them.
    """
    commands = {
        model: [sys.executable, *words, "--output", str(folder), model] for model in processes
    }
    if hosts == 1:
        on_one_host(commands, processes, folder)
    else:
        on_hosts(commands, processes, hosts // 2, protection, folder)


def on_one_host(commands: dict[str, list[str]], processes: dict[str, int], folder: Path) -> None:
    """`exoskel couple` starts all, by its file."""
    file = folder / "climate.toml"
    ranks = {
        model: [sys.executable, str(RANKS), str(size), *commands[model][1:]]
        for model, size in processes.items()
    }
    file.write_text(coupling({model: shlex.join(words) for model, words in ranks.items()}))
    exoskel("couple", file)


def coupling(commands: dict[str, str]) -> str:
    """The coupling's file, with other commands or none."""
    text = COUPLING.read_text()
    for model in re.findall(r"\[program\.(\w+)\]", text):
        line = f"command = {json.dumps(commands[model])}\n" if model in commands else ""
        text = re.sub(rf"(\[program\.{model}\]\n)command = .*\n", lambda m: m[1] + line, text)  # noqa: B023
    return text


def on_hosts(
    commands: dict[str, list[str]],
    processes: dict[str, int],
    hosts: int,
    protection: str,
    folder: Path,
) -> None:
    """A keeper for each host, as many hosts for each model; and one that couples and has no process."""
    names = [f"{model}{number}" for model in processes for number in range(hosts)]
    credentials(folder, ["head", *names])
    domains = [
        DOMAIN.format(number=number, names=names)
        for number, names in enumerate(DOMAINS[protection])
    ]
    (folder / "policy.toml").write_text("".join([*domains, JOINING]))
    (folder / "climate.toml").write_text(coupling({}))
    own = ["--listen", "tcp://127.0.0.1:0", "--policy", folder / "policy.toml"]
    with contextlib.ExitStack() as stack:
        file = folder / "climate.toml"
        head = stack.enter_context(
            running("couple", file, *own, "--credential", folder / "head.pem")
        )
        address = line_of(head, "stderr").split("--join ")[1].split()[0]
        for name in names:
            words = ["--join", address, "--coupler", "head.example.org", "--socket", folder / name]
            keeper = stack.enter_context(
                running("keeper", *words, *own, "--credential", folder / f"{name}.pem")
            )
            if "has joined" not in line_of(keeper, "stdout"):
                raise SystemExit(f"the keeper {name} has not joined: {keeper.communicate()[1]}")
        for model, size in processes.items():
            for rank in range(size):
                host = folder / f"{model}{rank * hosts // size}"
                stack.enter_context(member(commands[model], rank, size, host))
        output, errors = head.communicate()
        if head.returncode:
            raise SystemExit(f"{output}{errors}")


def credentials(folder: Path, names: list[str]) -> None:
    """An authority, and a credential for each host."""
    exoskel("pki", "init", folder / "authority")
    for name in names:
        who = ["--role", "peer", "--name", f"{name}.example.org"]
        where = ["--directory", folder / "authority", "--output", folder / f"{name}.pem"]
        exoskel("pki", "issue", *who, *where)


def exoskel(*words: object) -> None:
    """Run a command of Exoskel to its end."""
    command = [sys.executable, "-m", "exoskel", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}")


@contextlib.contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a command of Exoskel in a block."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "exoskel", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def member(command: list[str], rank: int, size: int, keeper: Path) -> Iterator[None]:
    """Run a process of a model in a block. It is told its rank as MPI's starters do it, and where its host's keeper is."""
    place = {"PMI_RANK": str(rank), "PMI_SIZE": str(size), "EXOSKEL_KEEPER": str(keeper)}
    with subprocess.Popen(command, env={**os.environ, **place}) as process:
        try:
            yield
            if process.wait():
                raise SystemExit(f"rank {rank} of {command[-1]} has failed")
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str], stream: str) -> str:
    """The next line that a process prints."""
    lines = getattr(process, stream)
    return lines.readline() or f"{process.args} has ended"
