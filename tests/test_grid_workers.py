"""Managers with proxies, workers with host certificates: grid identities on our own links, with real worker processes."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.certificates.grid import PRODUCTION, VO, VOMS_SERVER, Grid, Holder, write_private
from tests.processes import eventually

import exoskel as ex
from exoskel.cli import main

NAME = "worker1.lab.exoskel.test"

POLICY = f"""\
[allow]
managers = ["{PRODUCTION}"]

[domain.lab]
addresses = ["127.0.0.0/24"]
names = ["*.lab.exoskel.test", "/DC=test/DC=exoskel/O=People/CN=*"]
results = "pickle"

[[rule]]
from = "lab"
to = "lab"
protection = "plain"
"""


class Farm:
    """A worker of a grid, and what its managers need."""

    def __init__(self, grid: Grid, place: Path) -> None:
        self.grid = grid
        self.place = place
        self.policy = place / "policy.toml"
        self.policy.write_text(POLICY)
        self.line = ""
        self.log = place / "log"
        self._processes = ExitStack()

    def worker(self, host: Holder, *more: str) -> subprocess.Popen[str]:
        """Start `exoskel worker` with a host certificate and its key as a site has them: in two files."""
        certificate, key = self.place / "hostcert.pem", self.place / "hostkey.pem"
        certificate.write_bytes(host.certificates())
        write_private(key, host.private_key())
        words = ["--credential", str(certificate), "--key", str(key), *self.grid.trust]
        words += ["--policy", str(self.policy), "--slots", "1", "--listen", "tcp://127.0.0.1:0"]
        with open(self.log, "wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "exoskel", "worker", "--json", *words, *more],
                cwd=self.place,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._processes.callback(end, process)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, self.log.read_text()
        self.line = f"{json.loads(said)['listen']} {NAME}"
        return process

    def manager(self, program: Any, proxy: Holder, **options: Any) -> ex.Manager:
        """Make a manager whose credential is a proxy."""
        return ex.Manager(
            program,
            ex.ParDegree(1),
            workers=[self.line],
            credential=proxy.write(self.place / "proxy"),
            policy=self.policy,
            connect_timeout=20,
            **{"trust_anchors": self.grid.anchors, "vomsdir": self.grid.vomsdir, **options},
        )

    def close(self) -> None:
        """End the worker."""
        self._processes.close()


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.terminate()


@pytest.fixture
def farm(grid: Grid, tmp_path: Path) -> Iterator[Farm]:
    """A farm whose worker the test starts."""
    made = Farm(grid, tmp_path)
    yield made
    made.close()


def square(number: int) -> int:
    return number * number


def connects(_: int) -> bool:
    """Say whether a task may make a socket."""
    import socket

    try:
        socket.socket().close()
    except PermissionError:
        return False
    return True


@pytest.mark.parametrize("free", [False, True])
def test_people_of_a_grid_are_confined_unless_the_policy_frees_them(farm: Farm, free: bool) -> None:
    table = f'[sandbox]\nfree = ["{PRODUCTION}"]\n' if free else ""
    farm.policy.write_text(POLICY + table)
    farm.worker(farm.grid.host(NAME))
    proxy = farm.grid.proxy(farm.grid.user(), PRODUCTION)
    with farm.manager(ex.Farm(connects), proxy) as manager:
        assert list(manager.map([0])) == [free]
    said = "in a sandbox (as people and hosts of a grid are" in farm.log.read_text()
    assert said is not free


def test_a_worker_serves_the_role_that_it_allows_and_nobody_else(farm: Farm) -> None:
    farm.worker(farm.grid.host(NAME))
    alice = farm.grid.user()
    with farm.manager(square, farm.grid.proxy(alice, PRODUCTION)) as manager:
        assert list(manager.map(range(100))) == [number * number for number in range(100)]
        # The domain names host and user by verified identity: plain among them, unpickled without restrictions.
        assert all(worker.domain == "lab" for worker in manager.summary().workers)
    with pytest.raises(ex.NoWorkerError) as refused:
        farm.manager(square, farm.grid.proxy(alice, f"/{VO}"))
    assert alice.dn in str(refused.value)
    # Attributes that nobody trusted has signed are none.
    stranger = Grid(farm.place / "elsewhere")
    farm.grid.server, own = stranger.server, farm.grid.server
    with pytest.raises(ex.NoWorkerError):
        farm.manager(square, farm.grid.proxy(alice, PRODUCTION))
    farm.grid.server = own
    with farm.manager(square, farm.grid.proxy(alice, PRODUCTION)) as manager:
        assert list(manager.map([3])) == [9]


def test_the_manager_judges_the_worker_too(farm: Farm) -> None:
    """A user can't pose as a worker, a host not as another one, and a host of elsewhere as none."""
    proxy = farm.grid.proxy(farm.grid.user(), PRODUCTION)
    farm.worker(farm.grid.host("worker2.lab.exoskel.test"))
    with pytest.raises(ex.NoWorkerError, match="worker2"):
        farm.manager(square, proxy)
    other = Grid(farm.place / "elsewhere")
    farm.line = farm.line.replace(NAME, "worker2.lab.exoskel.test")
    with pytest.raises(ex.NoWorkerError, match="trust"):
        ex.Manager(
            square,
            ex.ParDegree(1),
            workers=[farm.line],
            credential=other.proxy(other.user()).write(farm.place / "stranger"),
            trust_anchors=other.anchors,
            vomsdir=other.vomsdir,
            connect_timeout=20,
        )


def test_who_is_revoked_is_dropped_at_the_reload_and_refused_from_then_on(farm: Farm) -> None:
    farm.worker(farm.grid.host(NAME), "--trust-interval", "1")
    alice = farm.grid.user()
    mine = farm.grid.proxy(alice, PRODUCTION)
    # A manager whose own directories don't know: it is the worker that drops it.
    old = shutil.copytree(farm.grid.anchors, farm.place / "old")
    with farm.manager(square, mine, trust_anchors=old) as manager:
        stream = manager.map(itertools.count())
        assert next(stream) == 0
        farm.grid.revoke(alice)
        with pytest.raises(ex.NoWorkerError):
            for _ in stream:
                pass
    assert eventually(lambda: "is revoked" in farm.log.read_text())
    with pytest.raises(ex.NoWorkerError, match="refused our certificate"):
        farm.manager(square, mine, trust_anchors=old)
    bob = farm.grid.proxy(farm.grid.user("Bob"), PRODUCTION)
    with farm.manager(square, bob) as manager:
        assert list(manager.map([4])) == [16]


def test_who_loses_the_role_is_dropped_at_the_reload(farm: Farm) -> None:
    """The identity is as good as ever; what let it in, nobody vouches for any longer."""
    farm.worker(farm.grid.host(NAME), "--trust-interval", "1")
    mine = farm.grid.proxy(farm.grid.user(), PRODUCTION)
    # A manager whose own directories don't change: it is the worker that drops it.
    own = shutil.copytree(farm.grid.vomsdir, farm.place / "own")
    with farm.manager(square, mine, vomsdir=own) as manager:
        stream = manager.map(itertools.count())
        assert next(stream) == 0
        (farm.grid.vomsdir / VO / f"{VOMS_SERVER}.lsc").unlink()
        with pytest.raises(ex.NoWorkerError):
            for _ in stream:
                pass
    assert eventually(lambda: "no pattern for it" in farm.log.read_text())
    with pytest.raises(ex.NoWorkerError):
        farm.manager(square, mine, vomsdir=own)


def test_a_worker_that_trusts_nobody_says_so_before_it_listens(
    farm: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    host = str(farm.grid.host(NAME).write(tmp_path / "host"))
    empty = tmp_path / "empty"
    empty.mkdir()
    for directory, expected in ((tmp_path / "nowhere", "nowhere"), (empty, "no usable authority")):
        words = ["--listen", "tcp://127.0.0.1:0", "--credential", host]
        assert main(["worker", *words, "--trust-anchors", str(directory)]) == 1
        said = capsys.readouterr()
        assert said.err.count(expected) == 1
        assert "listening" not in said.out


def test_credentials_that_can_t_stand_here_are_told_at_once(farm: Farm, tmp_path: Path) -> None:
    alice = farm.grid.user()
    host = farm.grid.host(NAME).write(tmp_path / "host")
    common: dict[str, Any] = {"workers": ["127.0.0.1:1 a"], "trust_anchors": farm.grid.anchors}
    with pytest.raises(ex.CredentialError, match="expected a manager's"):
        ex.Manager(square, ex.ParDegree(1), credential=host, **common)
    proxy = farm.grid.proxy(alice).write(tmp_path / "proxy")
    proxy.chmod(0o640)
    with pytest.raises(ex.CredentialError, match="0640"):
        ex.Manager(square, ex.ParDegree(1), credential=proxy, **common)
    proxy.chmod(0o600)
    common["trust_anchors"] = tmp_path / "nowhere"
    with pytest.raises(ex.CredentialError, match="nowhere"):
        ex.Manager(square, ex.ParDegree(1), credential=proxy, **common)
    farm.grid.revoke(alice)
    common["trust_anchors"] = farm.grid.anchors
    with pytest.raises(ex.CredentialError, match="is revoked"):
        ex.Manager(square, ex.ParDegree(1), credential=proxy, **common)
