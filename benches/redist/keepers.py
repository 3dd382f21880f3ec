"""Our lanes: two programs, coupled by a keeper on this host, or by one for each over TCP."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from benches.links.install import Missing
from benches.redist import programs

from exoskel import _core

COUPLING = """
[program.source]
[program.target]
[[connection]]
from = "source.field"
to = "target.field"
[[connection]]
from = "target.ready"
to = "source.ready"
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
def one_host() -> Iterator[dict[str, Path]]:
    """One keeper for both programs: where each finds it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "keeper")
        keeper = _core.Keeper(place, COUPLING)
        try:
            yield {"source": place, "target": place}
        finally:
            keeper.end()


@contextlib.contextmanager
def two_hosts(protection: str) -> Iterator[dict[str, Path]]:
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
        (folder / "coupling.toml").write_text(COUPLING)
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


def ours(length: int, size: int, versions: int, hosts: Callable[[], Hosts]) -> list[float]:
    """Seconds for each version, by two programs of ours: from the first export to the last import."""
    program = programs.ours()
    with hosts() as places:
        started = {
            name: [
                subprocess.Popen(
                    [program, name, str(rank), str(size), str(length), axes, str(versions)],
                    env={"EXOSKEL_KEEPER": str(places[name])},
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for rank in range(size)
            ]
            for name, axes in (("source", "block,*"), ("target", "*,block"))
        }
        times = {}
        for name, processes in started.items():
            said = [process.communicate()[0].split() for process in processes]
            if any(process.returncode for process in processes):
                raise Missing(f"{name} has failed")
            times[name] = list(zip(*[list(map(int, words)) for words in said], strict=True))
    pairs = zip(times["source"], times["target"], strict=True)
    return [(max(target) - min(source)) / 1e9 for source, target in pairs]
