"""Dask: scheduler and two single-thread workers as processes of their own, over tcp or tls (the variant)."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tasks
from distributed import Client, Security
from protocol import SLOTS, Engine, Function, Program, main


class DaskProgram(Program):
    """Stages chained through futures: the second stage's inputs are the first one's futures."""

    def __init__(self, client: Client, stages: Sequence[Function]) -> None:
        self.client = client
        self.stages = stages

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """One task an item; the keys are fresh, so that nothing is answered from a cache."""
        futures: Iterable[Any] = list(items)
        for stage in self.stages:
            futures = self.client.map(stage, futures, pure=False)
        return iter(self.client.gather(futures))

    def map_chunked(self, items: Sequence[Any], chunk: int) -> Iterator[Any]:
        """Chunks that the user makes by hand."""
        pieces = [list(items[start : start + chunk]) for start in range(0, len(items), chunk)]
        for piece in self.client.gather(self.client.map(tasks.noop_many, pieces, pure=False)):
            yield from piece

    def bulk(self, payloads: list[bytes]) -> Iterator[bytes]:
        """Scattered and gathered directly between client and workers, past the scheduler."""
        scattered = self.client.scatter(payloads, direct=True, hash=False)
        futures = self.client.map(self.stages[0], scattered, pure=False)
        return iter(self.client.gather(futures, direct=True))


class DaskEngine(Engine):
    """No dashboard, no nanny; TLS is 1.3 with P-256 and a CA of its own, mutual."""

    module = "distributed"
    chunks = (100, 1000)

    @contextmanager
    def program(self, *stages: Function) -> Iterator[Program]:
        """A fresh cluster."""
        with self.cluster() as client:
            yield DaskProgram(client, stages)

    @contextmanager
    def caller(self, function: Function) -> Iterator[Function]:
        """`submit` and `result`."""
        with self.cluster() as client:
            yield lambda item: client.submit(function, item, pure=False).result()

    @contextmanager
    def cluster(self) -> Iterator[Client]:
        """Scheduler and workers, ended with the block."""
        with tempfile.TemporaryDirectory() as directory:
            options, security = self.security(Path(directory))
            file = str(Path(directory) / "scheduler.json")
            dask = [sys.executable, "-m", "dask"]
            # Scheduler and workers find each other through the file; who comes first waits for it.
            common = [*options, "--scheduler-file", file, "--host", "127.0.0.1", "--no-dashboard"]
            worker = [
                "worker",
                *common,
                "--nthreads",
                "1",
                "--no-nanny",
                "--local-directory",
                directory,
            ]
            commands = [["scheduler", *common, "--port", "0"], *[worker for _ in range(SLOTS)]]
            processes = [
                subprocess.Popen(
                    [*dask, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                )
                for command in commands
            ]
            try:
                with Client(scheduler_file=file, security=security, timeout=60) as client:
                    client.wait_for_workers(SLOTS, timeout=60)
                    yield client
            finally:
                for process in reversed(
                    processes
                ):  # workers first: they'd look for a lost scheduler for a minute
                    end(process)

    def security(self, directory: Path) -> tuple[list[str], Security | None]:
        """Command-line options of the servers and the client's side of it."""
        if self.variant == "tcp":
            return [], None
        # The engines' folder is all that is on the path of this script; certificates have one maker, for tests and benches.
        sys.path.append(str(Path(__file__).resolve().parents[2]))
        from tests.certificates.grid import Grid, write_private

        grid = Grid(directory / "grid")
        leaf = grid.host("localhost", "127.0.0.1")
        files = {
            "ca_file": grid.anchor,
            "cert": write_private(directory / "leaf.pem", leaf.certificates()),
            "key": write_private(directory / "leaf.key", leaf.private_key()),
        }
        authority, certificate, key = map(str, files.values())
        options = [f"--tls-{name.replace('_', '-')}={file}" for name, file in files.items()]
        security = Security(
            tls_ca_file=authority,
            tls_client_cert=certificate,
            tls_client_key=key,
            require_encryption=True,
        )
        return ["--protocol", "tls", *options], security


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to go, and don't wait for ever."""
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main(DaskEngine)
