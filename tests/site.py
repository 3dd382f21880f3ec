"""A site: an authority, a policy, a manager's credential, and workers, each `exoskel worker` in a process of its own."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.processes import children, eventually, gone

import exoskel as ex
from exoskel.cli import main

POLICY = """\
[domain.lab]
addresses = ["127.0.0.0/24"]
names = ["*.lab.example.org"]
results = "pickle"

[[rule]]
from = "lab"
to = "lab"
protection = "plain"
"""

MANAGER = "head.lab.example.org"


class Worker:
    """A running worker: its supervisor, its line in a hosts file, and what it has written."""

    def __init__(self, process: "subprocess.Popen[str]", line: str, log: Path) -> None:
        self.process = process
        self.line = line
        self.log = log

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.line.split()[0]

    def kill(self) -> None:
        """Take it away with all its slots, as a power cut would; nobody listens at its address after that."""
        # What forks slots has the listening socket as well.
        below = children(self.process.pid)
        self.process.kill()
        for process in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()
        assert eventually(lambda: all(map(gone, below)))

    def end(self) -> None:
        """End it in order, unless it was taken away."""
        with self.process:
            if self.process.poll() is None:
                self.process.terminate()
        assert self.process.returncode in (0, -signal.SIGKILL), self.log.read_text()


class Site:
    """An authority, a policy, a manager's credential, and workers, all in one directory."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.policy = place / "policy.toml"
        self.policy.write_text(POLICY)
        assert main(["pki", "init", str(place / "pki"), "--json"]) == 0
        self.credential = self.issue("manager", MANAGER)
        self._workers = contextlib.ExitStack()

    def issue(self, role: str, name: str, *more: str) -> Path:
        """Issue a credential."""
        path = self.place / f"{name}.pem"
        place = ["--directory", str(self.place / "pki"), "--output", str(path)]
        assert main(["pki", "issue", *place, "--role", role, "--name", name, "--json", *more]) == 0
        return path

    def worker(
        self,
        name: str,
        *more: str,
        listen: str = "tcp://127.0.0.1:0",
        join: str | None = None,
        slots: int = 1,
        policy: str = POLICY,
        credential: Path | None = None,
        **process: Any,
    ) -> Worker:
        """Start a worker; it ends with the test."""
        home = self.place / f"home-{name}"
        home.mkdir(exist_ok=True)
        (home / "policy.toml").write_text(policy)
        way = ["--listen", listen] if join is None else ["--join", join]
        options = ["--policy", str(home / "policy.toml"), "--slots", str(slots), "--json"]
        options += ["--credential", str(credential or self.issue("worker", name)), *more]
        log = home / "log"
        with open(log, "ab") as errors:
            started = subprocess.Popen(
                [sys.executable, "-P", "-m", "exoskel", "worker", *way, *options],
                cwd=home,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                **process,
            )
        worker = Worker(started, "", log)
        self._workers.callback(worker.end)
        assert started.stdout is not None
        said = started.stdout.readline()
        assert said, log.read_text()
        worker.line = f"{json.loads(said).get('listen', '')} {name}"
        return worker

    def close(self) -> None:
        """End all workers."""
        self._workers.close()

    def connect(self, program: Any, slots: int, *workers: Worker, **options: Any) -> ex.Manager:
        """Make a manager of these workers."""
        hosts = [worker.line for worker in workers]
        options = {"workers": hosts or None, "policy": self.policy, **options}
        return ex.Manager(
            program, ex.ParDegree(slots), credential=self.credential, connect_timeout=20, **options
        )

    def script(self, script: str, *hosts: str, **files: str) -> Path:
        """Write a script with neighbours; ``connect`` in it makes a manager of these hosts."""
        place = self.place / "script"
        place.mkdir(exist_ok=True)
        for name, text in files.items():
            (place / f"{name}.py").write_text(textwrap.dedent(text))
        head = f"""
            import exoskel as ex

            def connect(program, slots={len(hosts)}, **options):
                options = {{"workers": {list(hosts)!r}, **options}}
                credential = {str(self.credential)!r}
                return ex.Manager(program, ex.ParDegree(slots), credential=credential, policy={str(self.policy)!r}, **options)
        """
        (place / "job.py").write_text(textwrap.dedent(head) + textwrap.dedent(script))
        return place / "job.py"

    def run(self, script: str, *hosts: str, **files: str) -> "subprocess.CompletedProcess[str]":
        """Run such a script in a process of its own, as a user would."""
        command = [sys.executable, str(self.script(script, *hosts, **files))]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=300, check=False, cwd=self.place
        )


def free_address() -> str:
    """Return an address at which nobody listens, and that nobody gets for a minute who asks for any that is free."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = probe.getsockname()
        with socket.create_connection(address):
            # The end that closes first keeps the port from the system's choice (TIME-WAIT); whoever names it may listen there.
            probe.accept()[0].close()
        return f"127.0.0.1:{address[1]}"
