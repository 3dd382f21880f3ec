"""Control groups: the processes of a job on one host are held together."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import children, eventually, gone
from tests.test_sandbox import python_for_all

import exoskel as ex
from exoskel import control_groups
from exoskel.control_groups import GroupPlace, HostGroup, JobGroups, own_places, sweep
from exoskel.host_sandbox import narrowed
from exoskel.job_orphans import named, namespace

SECONDS = 60.0


def hindrance() -> str:
    """Say why this account can make no control groups."""
    try:
        control_groups.check(ex.Sandbox(total_memory="1 GiB", total_processes=64).told())
    except ValueError as error:
        return str(error)
    return ""


needs_groups = pytest.mark.skipif(bool(hindrance()), reason=hindrance() or "there are groups")


def left(agent: int) -> list[Path]:
    """List what there is of the groups of an agent."""
    folders = {place.folder for place in own_places().values()}
    return sorted(
        one for folder in folders for one in folder.glob(f"exoskel-{namespace()}.{agent}.*")
    )


def members(agent: int) -> list[int]:
    """List the processes that are in groups of an agent."""
    found: list[int] = []
    for folder in left(agent):
        for procs in folder.glob("*/cgroup.procs"):
            found += map(int, procs.read_text().split())
    return found


def hold_much(here: Any, mebibytes: int) -> int:
    """Have so much memory, and keep it until the job ends."""
    global held
    held = bytearray(mebibytes << 20)
    for place in range(0, len(held), 4096):
        held[place] = 1
    return int(here.rank)


held = bytearray()


@needs_groups
def test_processes_have_so_much_memory_together() -> None:
    with ex.Job() as job:
        [agent] = children(os.getpid())
        assert left(agent) == []
        sandbox = ex.Sandbox(total_memory="400 MiB", memory="8 GiB")
        # One of them has room, also twice as much as its part.
        assert job.start(hold_much, arguments=[250], sandbox=sandbox).values(SECONDS) == [0]
        # Two are too many, though each could be alone.
        many = job.start(hold_much, count=2, arguments=[250], sandbox=sandbox)
        with pytest.raises(ex.ProcessEndedError, match="all of them together have more memory"):
            many.values(SECONDS)
        text = str(job.summary())
        assert "419430400 bytes of memory with all that were started with it here" in text
        assert left(agent) != []
    assert left(agent) == []


@needs_groups
def test_processes_are_so_many_together() -> None:
    words = ["sh", "-c", "for one in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait"]
    with ex.Job() as job:
        [agent] = children(os.getpid())
        sandbox = ex.Sandbox(total_processes=24)
        alone = job.start(words, sandbox=sandbox)
        assert eventually(lambda: len(set(members(agent))) == 10)
        alone.send_signal(signal.SIGKILL)
        assert alone.wait(SECONDS) == [-signal.SIGKILL]
        job.start(words, count=4, sandbox=sandbox)
        # The shell ends that can't fork.
        ended = job.summary
        assert eventually(lambda: any(one.has_ended for one in ended().processes[1:]))
        assert any("fork" in one.stderr for one in ended().processes[1:])


PROGRAM = """
import exoskel as ex
with ex.Job() as job:
    started = job.start(["sleep", "600"], count=2, sandbox=ex.Sandbox(total_processes=64))
    while not all(one.sandbox for one in job.summary().processes):
        pass
    print("there", flush=True)
    started.wait()
"""


@needs_groups
def test_the_groups_of_a_killed_agent_are_removed_by_the_next_one(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"there\n"
        [agent] = children(running.pid)
        before, inside = left(agent), members(agent)
        assert len(set(inside)) == 2
        # Groups in which something runs stay.
        sweep()
        assert left(agent) == before
        os.kill(agent, signal.SIGKILL)
        running.kill()
    assert eventually(lambda: all(map(gone, inside)) and not members(agent))
    assert left(agent) == before
    with ex.Job():
        pass
    assert left(agent) == []


def test_groups_of_agents_in_other_containers_are_left_to_these(tmp_path: Path) -> None:
    """Method: folders in the place of groups, for agents that have ended, for one that runs, and with the numbers of another PID namespace."""
    own, other = namespace(), namespace() + 1
    is_left = {f"exoskel-{named()}": True, f"exoskel-{own}.{os.getpid()}.1-2": False}
    is_left |= {f"exoskel-{other}.{os.getpid()}.1": True, f"exoskel-{os.getpid()}-1-2": True}
    for name in is_left:
        (tmp_path / name / "start-1").mkdir(parents=True)
    sweep({"pids": GroupPlace(tmp_path, is_unified=False)})
    assert {name: (tmp_path / name).exists() for name in is_left} == is_left


@needs_groups
def test_what_a_host_and_a_job_say_holds_both() -> None:
    table = ex.Sandbox(total_memory="1 GiB", total_processes=100).told()
    asked = ex.Sandbox(total_memory="2 GiB").told()
    groups = JobGroups(table)
    try:
        told = groups.of_start(7, narrowed(table, asked))
        assert told["together"] == [
            "1073741824 bytes of memory with all processes of its job on this host",
            "2147483648 bytes of memory with all that were started with it here",
            "100 processes and threads with all processes of its job on this host",
        ]
        folders = [Path(one) for one in told["groups"]]
        assert [one.name for one in folders] == ["start-7"] * len(folders)
        limits = sorted(
            int(path.read_text())
            for folder in {one for own in folders for one in (own, own.parent)}
            for name in ("memory.limit_in_bytes", "memory.max", "pids.max")
            if (path := folder / name).exists() and path.read_text().strip().isdigit()
        )
        assert {100, 1 << 30, 2 << 30} <= set(limits)
        # The same start comes again when a slot is replaced.
        assert groups.of_start(7, narrowed(table, asked)) == told
        assert groups.of_start(8, narrowed(table, None))["groups"] != told["groups"]
    finally:
        groups.close()
    assert left(os.getpid()) == []


def test_what_can_not_be_held_together_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_groups, "own_places", dict)
    table = ex.Sandbox(total_memory="1 GiB").told()
    with pytest.raises(OSError, match="offers no control groups of the controller memory"):
        JobGroups(table).of_start(1, None)
    with pytest.raises(ValueError, match="total_memory: this host offers no control groups"):
        control_groups.check(table)
    control_groups.check(ex.Sandbox().told())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"total_memory": "1 MiB"}, "got total_memory='1 MiB', expected at least 64 MiB"),
        ({"total_processes": 0}, "got total_processes=0"),
        ({"total_processes": True}, "got total_processes=True"),
    ],
)
def test_totals_that_can_not_be_meant_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ex.Sandbox(**options)


@pytest.mark.parametrize("most", [-1, "max", True, 1.5])
def test_totals_that_a_creator_says_wrongly_are_refused(most: Any) -> None:
    with pytest.raises(ValueError, match="expected a number above 0"):
        JobGroups(None).of_start(1, {"total_memory": most})


@needs_groups
def test_a_daemon_of_root_holds_the_processes_of_another_account(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("it is about an agent of root, and this is another account")
    modules = [path for path in sys.path if path.endswith("site-packages")]
    root = Path(__file__).parents[1]
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([str(root / "python"), *modules]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    words = [python_for_all(), str(root / "tests" / "job_account.py"), str(tmp_path)]
    ran = subprocess.run(
        words, env=env, cwd="/", capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    limits, said, left_over = json.loads(ran.stdout.splitlines()[-1])
    # The account divides the group, and can't change what the policy has said.
    assert limits == [[0, "50\n"], [pwd.getpwnam("nobody").pw_uid, "max\n"]]
    assert any("fork" in one for one in said)
    assert left_over == []


FIRST = """
9:name=systemd:/user
8:pids:/user/one
4:cpu,memory:/user
0::/user
"""
FIRST_MOUNTS = """
32 31 0:29 / {place}/cpu rw,relatime - cgroup cgroup rw,cpu
35 31 0:32 /user {place}/own\\040memory rw,relatime shared:9 - cgroup cgroup rw,memory
39 31 0:36 / {place}/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / {place}/unified rw,relatime - cgroup2 cgroup2 rw
42 31 0:39 / /dev/shm rw - tmpfs tmpfs rw
"""


def told(place: Path, groups: str, mounts: str) -> dict[str, GroupPlace]:
    """Return what is found where the kernel says this."""
    (place / "cgroup").write_text(groups.lstrip())
    (place / "mountinfo").write_text(mounts.format(place=place).lstrip())
    return own_places(place)


def test_groups_are_found_in_both_versions(tmp_path: Path) -> None:
    (tmp_path / "unified" / "user").mkdir(parents=True)
    (tmp_path / "unified" / "user" / "cgroup.controllers").write_text("\n")
    assert told(tmp_path, FIRST, FIRST_MOUNTS) == {
        "memory": GroupPlace(tmp_path / "own memory", is_unified=False),
        "pids": GroupPlace(tmp_path / "pids/user/one", is_unified=False),
    }
    (tmp_path / "unified" / "user" / "cgroup.controllers").write_text("cpu memory pids\n")
    unified = GroupPlace(tmp_path / "unified/user", is_unified=True)
    mounts = "41 31 0:38 / {place}/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"
    assert told(tmp_path, "0::/user\n", mounts) == {"memory": unified, "pids": unified}
    # Of a part of the hierarchy that isn't mounted here, nothing is known.
    elsewhere = mounts.replace(" / ", " /other ")
    assert told(tmp_path, "0::/user\n", elsewhere) == {}
    assert told(tmp_path, "0::/../user\n", mounts) == {}
    assert own_places(tmp_path / "none") == {}


def unified(place: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, GroupPlace]:
    """Return a tree that looks like the unified hierarchy, as far as plain files do."""
    make: Callable[..., None] = Path.mkdir

    def mkdir(folder: Path, *arguments: Any, **keywords: Any) -> None:
        make(folder, *arguments, **keywords)
        for name in ("cgroup.procs", "cgroup.subtree_control", "memory.swap.max"):
            (folder / name).touch()

    def rmdir(folder: Any) -> None:
        for one in Path(folder).iterdir():
            one.unlink()
        remove(folder)

    remove = os.rmdir
    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "rmdir", rmdir)
    monkeypatch.setattr(os, "rmdir", rmdir)
    (place / "base").mkdir()
    return dict.fromkeys(("memory", "pids"), GroupPlace(place / "base", is_unified=True))


def test_what_is_written_in_the_unified_hierarchy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = unified(tmp_path, monkeypatch)
    monkeypatch.setattr(control_groups, "own_places", lambda: places)
    table = ex.Sandbox(total_memory="1 GiB", total_processes=100).told()
    host = HostGroup(3, table, os.geteuid(), os.getegid())
    own = host.places["memory"].folder
    assert host.places == dict.fromkeys(("memory", "pids"), GroupPlace(own, is_unified=True))
    assert own.parent.parent == tmp_path / "base"
    assert (own / "memory.max").read_text() == str(1 << 30)
    assert (own / "memory.swap.max").read_text() == "0"
    assert (own / "pids.max").read_text() == "100"
    host.take(4711)
    assert (own.parent / "agent" / "cgroup.procs").read_text() == "4711"
    groups = JobGroups(table, host.places)
    told = groups.of_start(9, ex.Sandbox(total_processes=10).told())
    assert told["groups"] == [str(own / "start-9")]
    assert (own / "start-9" / "pids.max").read_text() == "10"
    assert not (own / "start-9" / "memory.max").exists()
    (own / "memory.events").write_text("max 3\noom 1\noom_kill 0\n")
    assert not groups.has_ended_some(told["groups"])
    (own / "memory.events").write_text("max 3\noom 1\noom_kill 2\n")
    assert groups.has_ended_some(told["groups"])
    groups.close()
    assert not (own / "start-9").exists()
    host.close()
    assert not own.parent.exists()
    assert (tmp_path / "base").exists()
