"""Real workers in processes of their own, recruited by a manager over TCP, each with the rights its place gives it."""

import contextlib
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

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

NEAR, FAR = ("node1.lab.example.org", "127.0.0.1"), ("vm7.rented.example.org", "127.0.1.1")


class Site:
    """An authority, a policy, and workers; a script runs in a process of its own, as a user's would."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.policy = directory / "policy.toml"
        self.policy.write_text(POLICY)
        assert main(["pki", "init", str(directory / "pki"), "--json"]) == 0
        self.issue("manager", "head.lab.example.org")

    def issue(self, role: str, name: str) -> Path:
        """Issue a credential."""
        path = self.directory / f"{name}.pem"
        place = ["--directory", str(self.directory / "pki"), "--output", str(path)]
        assert main(["pki", "issue", *place, "--role", role, "--name", name, "--json"]) == 0
        return path

    @contextlib.contextmanager
    def worker(
        self, name: str, *way: str, slots: int = 1
    ) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Run a worker; give its process and the line of its hosts file."""
        home = self.directory / f"home-{name}"
        home.mkdir(exist_ok=True)
        credential = self.issue_once("worker", name)
        options = [
            "--credential",
            str(credential),
            "--policy",
            str(self.policy),
            "--slots",
            str(slots),
            "--json",
        ]
        command = [sys.executable, "-P", "-m", "exoskel", "worker", *way, *options]
        with (
            open(home / "log", "wb") as log,
            subprocess.Popen(
                command, cwd=home, stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            try:
                assert process.stdout is not None
                line = process.stdout.readline()
                assert line, (home / "log").read_text()
                yield process, f"{json.loads(line).get('listen', '')} {name}"
            finally:
                process.terminate()
        assert process.returncode == 0

    def issue_once(self, role: str, name: str) -> Path:
        """Issue a credential, unless there is one."""
        path = self.directory / f"{name}.pem"
        return path if path.exists() else self.issue(role, name)

    def run(self, script: str, *hosts: str, **files: str) -> "subprocess.CompletedProcess[str]":
        """Run a script with neighbours; ``connect`` in it makes a manager of these hosts."""
        place = self.directory / "script"
        place.mkdir(exist_ok=True)
        for name, text in files.items():
            (place / f"{name}.py").write_text(textwrap.dedent(text))
        head = f"""
            import exoskel as ex

            def connect(program, slots={len(hosts)}, **options):
                options = {{"workers": {list(hosts)!r}, **options}}
                credential = {str(self.directory / "head.lab.example.org.pem")!r}
                return ex.Manager(program, ex.ParDegree(slots), credential=credential, policy={str(self.policy)!r}, **options)
        """
        (place / "job.py").write_text(textwrap.dedent(head) + textwrap.dedent(script))
        command = [sys.executable, str(place / "job.py")]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, cwd=self.directory
        )


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Site:
    """Make a site in a new directory."""
    made = Site(tmp_path)
    capsys.readouterr()
    return made


@contextlib.contextmanager
def two_workers(site: Site) -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(site.worker(name, "--listen", f"tcp://{address}:0"))[1]
            for name, address in (NEAR, FAR)
        ]


def test_modules_and_output_travel_and_protection_follows_the_policy(site: Site) -> None:
    script = """
        import json, filters

        with connect(ex.Farm(filters.smooth)) as manager:
            print(sum(manager.map(range(200))))
            rows = manager.summary().as_dict()["workers"]
        print(json.dumps({row["name"]: [row["domain"], row["protection"], row["transport"]] for row in rows}))
    """
    neighbour = """
        import shapes, sys, time

        def smooth(item):
            time.sleep(0.001)
            if item % 100 == 7:
                print("seven", item)
                print("worse", file=sys.stderr)
            return shapes.twice(item)
    """
    with two_workers(site) as hosts:
        done = site.run(
            script, *hosts, filters=neighbour, shapes="def twice(item):\n    return 2 * item\n"
        )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert str(sum(range(0, 400, 2))) in lines
    marked = [line for line in lines if line.startswith("[")]
    assert sorted(line.partition("] ")[2] for line in marked) == ["seven 107", "seven 7"]
    assert all(line[1:].partition("]")[0] in (NEAR[0], FAR[0]) for line in marked)
    assert done.stderr.count("] worse") == 2
    assert json.loads(lines[-1]) == {
        NEAR[0]: ["lab", "plain", "tcp"],
        FAR[0]: ["", "encrypted", "tcp"],
    }


# Each runs on one worker alone: what does the caller get?
RESULTS = {
    "array": ("import numpy; value = numpy.arange(6.0).reshape(2, 3)[:, ::2]", True),
    "scalar": ("import numpy; value = numpy.float32(1.5)", True),
    "data": ("import datetime; value = [datetime.date(2026, 1, 2), {3: (4, b'5')}]", True),
    "large": ("value = bytes(1_000_000), bytearray(1_000_000)", True),
    "registered": ("import kinds; value = kinds.Point(1, 2)", True),
    "unregistered": ("import kinds; value = kinds.Other()", False),
    "lambda": ("value = lambda item: item", False),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results_from_outside_are_plain_data_and_registered_types(kind: str, site: Site) -> None:
    statement, allowed = RESULTS[kind]
    script = f"""
        import pickle, kinds

        def task(item):
            {statement}
            return value

        def told(outcome):
            return str(outcome) if isinstance(outcome, ex.ResultRejectedError) else "arrived"

        with connect(ex.Farm(task)) as manager:
            print(told(next(manager.map([0], errors="return"))))
    """
    kinds = """
        import dataclasses, exoskel

        @exoskel.register_result_type
        @dataclasses.dataclass
        class Point:
            x: int
            y: int

        class Other:
            pass
    """
    with two_workers(site) as (near, far):
        inside = site.run(script, near, kinds=kinds)
        outside = site.run(script, far, kinds=kinds)
    assert inside.stdout == "arrived\n", inside.stderr
    if allowed:
        assert outside.stdout == "arrived\n", outside.stderr
    else:
        assert FAR[0] in outside.stdout, outside.stderr
        assert 'results = "pickle"' in outside.stdout


@pytest.mark.parametrize("raised", [False, True], ids=["returned", "raised"])
def test_a_hostile_result_does_not_run(raised: bool, site: Site, tmp_path: Path) -> None:
    """What the worker does to itself is its own affair, so the payload acts only in the manager's process."""
    script = f"""
        import os

        MANAGER = os.getpid()

        class Hostile:
            def __init__(self, mark):
                self.mark = mark

            def __reduce__(self):
                code = f"__import__('os').getpid() == {{MANAGER}} and __import__('os').mkdir({{self.mark!r}})"
                return eval, (code,)

        def task(item):
            if item != "plain" and {raised}:
                raise ValueError(Hostile(item))
            return item if item == "plain" else [Hostile(item)]

        with connect(ex.Farm(task)) as manager:
            items = ["plain", MARK, "plain"]
            print([type(outcome).__name__ for outcome in manager.map(items, errors="return")])
    """
    with two_workers(site) as (near, far):
        trusted = site.run(f"MARK = {str(tmp_path / 'near')!r}\n" + textwrap.dedent(script), near)
        stranger = site.run(f"MARK = {str(tmp_path / 'far')!r}\n" + textwrap.dedent(script), far)
    # The attack is real: where the policy says `results = "pickle"`, it works.
    assert (tmp_path / "near").exists(), trusted.stderr
    assert not (tmp_path / "far").exists()
    kinds = {True: ["str", "TaskError", "str"], False: ["str", "ResultRejectedError", "str"]}
    assert stranger.stdout == f"{kinds[raised]}\n", stranger.stderr


def test_exceptions_bring_their_traceback(site: Site) -> None:
    script = """
        import filters

        with connect(ex.Farm(filters.broken)) as manager:
            try:
                list(manager.map([5]))
            except ValueError as error:
                print(error, "|", error.__cause__)
    """
    neighbour = "def broken(item):\n    raise ValueError(item)  # here\n"
    with two_workers(site) as (_, far):
        done = site.run(script, far, filters=neighbour)
    assert done.stdout.startswith("5 | "), done.stderr
    assert FAR[0] in done.stdout
    assert "raise ValueError(item)  # here" in done.stdout


def test_a_task_that_raises_stop_iteration_does_not_end_the_stream_in_silence(site: Site) -> None:
    script = """
        def task(item):
            if item == 1:
                raise StopIteration
            return item

        with connect(ex.Farm(task)) as manager:
            try:
                print(list(manager.map(range(3))))
            except Exception as error:
                print("raised")
    """
    with two_workers(site) as (near, _):
        assert site.run(script, near).stdout == "raised\n"


def test_what_a_worker_lacks_is_named(site: Site) -> None:
    script = """
        def task(item):
            import surely_not_installed

        with connect(ex.Farm(task)) as manager:
            print(next(manager.map([0], errors="return")))
    """
    with two_workers(site) as (near, _):
        assert "surely_not_installed" in site.run(script, near).stdout


def test_workers_join_a_manager_that_listens(site: Site) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    script = f"""
        with connect(ex.Farm(abs), slots=2, workers=None, listen={address!r}, wait=20) as manager:
            print(sum(manager.map(range(-10, 0))))
    """
    with site.worker(NEAR[0], "--join", f"tcp://{address}", slots=2):
        done = site.run(script)
    assert done.stdout == "55\n", done.stderr


def test_a_worker_serves_one_manager_after_the_other(site: Site) -> None:
    script = """
        with connect(ex.Farm(abs)) as manager:
            print(sum(manager.map(range(-10, 0))))
    """
    with site.worker(NEAR[0], "--listen", "tcp://127.0.0.1:0") as (process, host):
        for _ in range(3):
            assert site.run(script, host).stdout == "55\n"
        process.terminate()
        assert process.wait(timeout=2) == 0


def test_a_worker_with_another_name_is_not_used(site: Site) -> None:
    script = """
        try:
            connect(ex.Farm(abs), connect_timeout=3)
        except ex.NoWorkerError as error:
            print(error)
    """
    with site.worker(NEAR[0], "--listen", "tcp://127.0.0.1:0") as (_, host):
        address = host.split()[0]
        said = site.run(script, f"{address} other.lab.example.org")
    assert NEAR[0] in said.stdout, said.stderr
    assert "other.lab.example.org" in said.stdout


@pytest.mark.parametrize("trouble", ["revoked", "stranger"])
def test_a_worker_that_cannot_prove_itself_is_not_used(
    trouble: str, site: Site, tmp_path: Path
) -> None:
    script = """
        try:
            connect(ex.Farm(abs), connect_timeout=3)
        except ex.NoWorkerError as error:
            print(error)
    """
    place = ["--directory", str(site.directory / "pki")]
    if trouble == "stranger":
        (tmp_path / "other").mkdir()
        site.issue_once("worker", NEAR[0]).unlink()
        Site(tmp_path / "other").issue("worker", NEAR[0]).rename(site.directory / f"{NEAR[0]}.pem")
    else:
        site.issue_once("worker", NEAR[0])
        assert main(["pki", "revoke", *place, NEAR[0], "--json"]) == 0
        (site.directory / "head.lab.example.org.pem").unlink()
        site.issue("manager", "head.lab.example.org")
    with site.worker(NEAR[0], "--listen", "tcp://127.0.0.1:0") as (_, host):
        said = site.run(script, host)
    assert said.stdout.strip(), said.stderr
    assert ("revoked" if trouble == "revoked" else NEAR[0]) in said.stdout
