"""Our lanes: two programs, coupled by a keeper on this host, or by one for each over TCP."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from benches.links.install import Missing
from benches.redist import programs

from exoskel import _core

PROGRAMS = """
[program.source]
[program.target]
[[connection]]
from = "source.filled"
to = "target.filled"
[[connection]]
from = "target.ready"
to = "source.ready"
[[connection]]
from = "target.read"
to = "source.all_read"
[[connection]]
from = "target.read"
to = "target.all_read"
"""
FIELD = """
[[connection]]
from = "source.field{number}"
to = "target.field{number}"
{more}
"""
POLICY = """
[domain.lab]
addresses = ["127.0.0.0/8"]
names = ["*.example.org"]
[[rule]]
from = "lab"
to = "lab"
protection = "{}"
[[allow.rule]]
action = ["coupler.join", "coupler.report", "coupler.stay"]
name = "*.example.org"
"""


@contextlib.contextmanager
def one_host(coupling: str) -> Iterator[dict[str, Path]]:
    """One keeper for both programs: where each finds it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "keeper")
        keeper = _core.Keeper(place, coupling)
        try:
            yield {"source": place, "target": place}
        finally:
            keeper.end()


@contextlib.contextmanager
def two_hosts(protection: str, coupling: str) -> Iterator[dict[str, Path]]:
    """A keeper for each program, in processes of their own, and TCP between them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command("pki", "init", folder / "ca")
        for name in ("head", "lab"):
            words = ("--role", "peer", "--name", f"{name}.example.org")
            output = folder / f"{name}.pem"
            command("pki", "issue", "--directory", folder / "ca", *words, "--output", output)
        policy = folder / "policy.toml"
        policy.write_text(POLICY.format(protection))
        (folder / "coupling.toml").write_text(coupling)
        sockets = {name: folder / name for name in ("source", "target")}
        own = ["--listen", "tcp://127.0.0.1:0", "--policy", policy]
        couple = ["couple", folder / "coupling.toml", *own, "--credential", folder / "head.pem"]
        process = stack.enter_context(running(*couple))
        assert process.stderr is not None
        head = process.stderr.readline().split("--join ")[1].split()[0]
        for name, socket in sockets.items():
            join = ["keeper", "--join", head, "--coupler", "head.example.org", *own]
            more = ["--credential", folder / "lab.pem", "--socket", socket]
            keeper = stack.enter_context(running(*join, *more))
            assert keeper.stdout is not None
            if "has joined" not in keeper.stdout.readline():
                raise Missing(f"the keeper of {name} has not joined")
        yield sockets


def command(*words: object) -> None:
    """Run a command of ours to its end."""
    subprocess.run(
        [sys.executable, "-m", "exoskel", *map(str, words), "--json"],
        stdout=subprocess.DEVNULL,
        check=True,
    )


@contextlib.contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a command of ours in a block."""
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


Hosts: TypeAlias = contextlib.AbstractContextManager[dict[str, Path]]


def coupling(job: str, shapes: Sequence[str]) -> str:
    """The file of a coupling with an array for each shape, of those between "+" too."""
    fields = [
        FIELD.format(number=number, more=middle(shape) if job == "centre" else "")
        for number, shape in enumerate("+".join(shapes).split("+"))
    ]
    return "".join([PROGRAMS, *fields])


def middle(shape: str) -> str:
    """The key that selects the middle quarter of a matrix."""
    rows, columns = (int(one) for one in shape.split("x"))
    ranges = (f"{one // 4}:{one // 4 + one // 2}" for one in (rows, columns))
    return f'select = "[{", ".join(ranges)}]"'


def ours(
    job: str, shape: str, size: int, versions: int, hosts: Callable[[str], Hosts]
) -> list[float]:
    """Seconds for each version, by two programs of ours: from the first export to the last import."""
    words = [programs.ours(), job, size, versions, shape]
    with hosts(coupling(job, [shape])) as places:
        return versions_of(*(start(words, name, places[name]) for name in ("source", "target")))


def start(words: list[Any], program: str, keeper: Path) -> list[subprocess.Popen[str]]:
    """Start a program's processes, all on one host. The words are the binary, the job, how many, and what `ours.c` gets then."""
    return [process([], words, program, rank, keeper) for rank in range(words[2])]


def process(
    inside: list[str], words: list[Any], program: str, rank: int, keeper: Path
) -> subprocess.Popen[str]:
    """Start a process of a program, by a command that runs it on another host, or none."""
    binary, job, size, *more = words
    return started([*inside, binary, program, rank, size, job, *more], keeper)


def started(command: Sequence[object], keeper: Path) -> subprocess.Popen[str]:
    """Start a process that attaches to a keeper."""
    return subprocess.Popen(
        [str(word) for word in command],
        env={"EXOSKEL_KEEPER": str(keeper)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def printed(processes: Sequence[subprocess.Popen[str]]) -> list[list[int]]:
    """Wait for processes, and return the numbers that each has printed."""
    said = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, said, strict=True):
        if process.returncode:
            raise Missing(f"ours ended with {process.returncode}: {errors.strip()[-300:]}")
    return [[int(line) for line in lines.split()] for lines, _ in said]


def versions_of(
    sources: list[subprocess.Popen[str]], targets: list[subprocess.Popen[str]]
) -> list[float]:
    """Wait for processes, and return the seconds of each version."""
    begins, ends = (list(zip(*printed(processes), strict=True)) for processes in (sources, targets))
    return [(max(end) - min(begin)) / 1e9 for begin, end in zip(begins, ends, strict=True)]
