"""Real workers that are lost, busy, refused or joined in mid-run; each runs as `exoskel worker` in a process of its own."""

import contextlib
import importlib
import itertools
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, slots_of
from tests.site import MANAGER, POLICY, Site, free_address
from tests.whole_files import replace

import exoskel as ex
from exoskel.cli import main

# By value: workers have no tests.
WHERE: Callable[[int], tuple[int, int]] = lambda item: (item, __import__("os").getpid())  # noqa: E731


def by_name(manager: ex.Manager) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for worker in manager.summary().workers:
        rows.setdefault(worker.name, []).append(worker)
    return rows


def test_a_hosts_file_with_comments_and_more_slots_than_asked_for(
    site: Site, tmp_path: Path
) -> None:
    met = tmp_path / "met"
    met.mkdir()
    place = str(met)

    def meet(item: int) -> tuple[int, int]:
        import os
        import time

        # A slot that wakes late would find nothing left to do: each waits for the others.
        open(f"{place}/{os.getpid()}", "w").close()
        deadline = time.monotonic() + 60
        while len(os.listdir(place)) < 3:
            assert time.monotonic() < deadline, "the other slots did not come"
            time.sleep(0.002)
        return item, os.getpid()

    workers = [site.worker(f"node{number}.lab.example.org", slots=2) for number in (1, 2)]
    hosts = tmp_path / "hosts.txt"
    hosts.write_text(
        f"# the lab\n\n{workers[0].line}  # two cores\n{workers[0].line}\n   {workers[1].line}\n"
    )
    with site.connect(ex.Farm(meet), 3, workers=hosts) as manager:
        results = list(manager.map(range(5000)))
        rows = by_name(manager)
    assert [item for item, _ in results] == list(range(5000))
    assert len({process for _, process in results}) == 3
    assert sum(row.slots for group in rows.values() for row in group) == 3
    assert set(rows) == {"node1.lab.example.org", "node2.lab.example.org"}
    assert all(row.protection == "plain" for group in rows.values() for row in group)
    assert "node1.lab.example.org" in str(manager.summary())


@pytest.mark.parametrize(
    ("worker_policy", "options"),
    [("# nothing\n", {}), (POLICY, {"protection": "encrypted"}), (POLICY, {"policy": None})],
    ids=["the worker's policy", "the manager's argument", "the manager's policy"],
)
def test_the_stricter_end_decides(site: Site, worker_policy: str, options: dict[str, Any]) -> None:
    worker = site.worker("node1.lab.example.org", policy=worker_policy)
    with site.connect(ex.Farm(abs), 1, worker, **options) as manager:
        assert list(manager.map(range(-100, 0))) == list(range(100, 0, -1))
        (row,) = manager.summary().workers
    assert row.protection == "encrypted"


def test_a_lost_worker_is_replaced_from_the_next_line(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [site.worker(f"node{number}.lab.example.org") for number in (1, 2, 3)]
    count = 40_000
    with site.connect(ex.Farm(WHERE), 2, *workers) as manager:
        stream = manager.map(range(count))
        seen = [next(stream)[0] for _ in range(2000)]
        assert set(by_name(manager)) == {"node1.lab.example.org", "node2.lab.example.org"}
        workers[0].kill()
        seen += [item for item, _ in stream]
        assert seen == list(range(count))
        # The new one has been dialled, whether or not there was work left for it.
        assert eventually(lambda: "node3.lab.example.org" in by_name(manager))
        assert [item for item, _ in manager.map(range(3000))] == list(range(3000))
        rows = by_name(manager)
    assert [row.state for row in rows["node1.lab.example.org"]] == ["lost"]
    assert "node1.lab.example.org" in caplog.text


def test_with_no_line_left_the_run_goes_on_with_fewer_and_says_so(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [site.worker(f"node{number}.lab.example.org") for number in (1, 2)]
    with site.connect(ex.Farm(WHERE), 2, *workers) as manager:
        stream = manager.map(range(40_000))
        assert next(stream)[0] == 0
        workers[1].kill()
        assert [item for item, _ in stream] == list(range(1, 40_000))
        # All may be done before anybody notices.
        assert eventually(lambda: by_name(manager)["node2.lab.example.org"][0].state == "lost")
    assert "node2.lab.example.org" in caplog.text
    assert "slots that go on: 1" in caplog.text


def test_when_all_are_lost_the_stream_ends_with_the_reason(site: Site) -> None:
    worker = site.worker("node1.lab.example.org")
    with site.connect(ex.Farm(WHERE), 1, worker, patience=1) as manager:
        stream = manager.map(range(10_000_000))
        next(stream)
        worker.kill()
        with pytest.raises(ex.NoWorkerError):
            list(stream)
        with pytest.raises(ex.NoWorkerError):
            list(manager.map(range(10)))


def test_a_slot_that_stops_on_another_host_is_noticed(site: Site) -> None:
    workers = [site.worker(f"node{number}.lab.example.org") for number in (1, 2)]
    with site.connect(ex.Farm(WHERE), 2, *workers, dead_after=1.0) as manager:
        stream = manager.map(range(100_000))
        _, process = next(stream)
        os.kill(process, signal.SIGSTOP)
        lost = lambda: any(row.state == "lost" for row in manager.summary().workers)  # noqa: E731
        assert eventually(lost)
        assert [item for item, _ in stream] == list(range(1, 100_000))
        # Its worker replaces it when it has stood still for ten seconds.
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def test_an_item_that_ends_its_process_is_charged_across_hosts_too(site: Site) -> None:
    def task(item: int) -> int:
        import os

        if item == 20:
            os._exit(1)
        return item

    workers = [site.worker(f"node{number}.lab.example.org") for number in (1, 2, 3)]
    with site.connect(ex.Farm(task), 2, *workers, retries=2) as manager:
        results = list(manager.map(range(100), errors="return"))
    assert isinstance(results.pop(20), ex.WorkerLostError)
    assert results == [item for item in range(100) if item != 20]


def test_an_executor_across_hosts(site: Site) -> None:
    worker = site.worker("node1.lab.example.org", slots=2)
    with ex.Executor(
        2, workers=[worker.line], credential=site.credential, policy=site.policy
    ) as executor:
        futures = [executor.submit(pow, number, 2) for number in range(500)]
        assert [future.result() for future in futures] == [number**2 for number in range(500)]
        assert {row.protection for row in executor.summary().workers} == {"plain"}


def test_a_manager_that_a_worker_does_not_allow_is_told_why(site: Site) -> None:
    policy = POLICY + '\n[allow]\nmanagers = ["other.lab.example.org"]\n'
    worker = site.worker("node1.lab.example.org", policy=policy)
    with pytest.raises(ex.NoWorkerError, match=r"127\.0\.0\.1:.*\[allow\] managers"):
        site.connect(ex.Farm(abs), 1, worker)


def test_a_worker_that_the_manager_does_not_allow_is_not_used(site: Site) -> None:
    worker = site.worker("node1.lab.example.org")
    site.policy.write_text(POLICY + '\n[allow]\nworkers = ["node2.*"]\n')
    with pytest.raises(ex.NoWorkerError, match=r"127\.0\.0\.1:.*\[allow\] workers"):
        site.connect(ex.Farm(abs), 1, worker)


def test_pythons_that_do_not_match_are_named(site: Site) -> None:
    worker = site.worker("node1.lab.example.org")
    script = site.place / "job.py"
    script.write_text(
        textwrap.dedent(f"""
            import types
            import exoskel as ex
            import exoskel.manager

            real = exoskel.manager.sys
            old = types.SimpleNamespace(major=3, minor=9)
            exoskel.manager.sys = types.SimpleNamespace(version_info=old, path=real.path, modules=real.modules, executable=real.executable)
            try:
                ex.Manager(abs, ex.ParDegree(1), workers=[{worker.line!r}], credential={str(site.credential)!r})
            except ex.NoWorkerError as error:
                print(error)
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "3.9" in done.stdout, done.stderr
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in done.stdout
    assert worker.line.split()[0].removeprefix("tcp://") in done.stdout


def test_a_worker_whose_slots_are_taken_serves_the_next_manager_later(site: Site) -> None:
    worker = site.worker("node1.lab.example.org")
    with site.connect(ex.Farm(abs), 1, worker) as first:
        assert list(first.map([-1])) == [1]
        with pytest.raises(ex.NoWorkerError, match=r"127\.0\.0\.1"):
            ex.Manager(
                abs,
                ex.ParDegree(1),
                workers=[worker.line],
                credential=site.credential,
                connect_timeout=1,
                wait=2,
            )
        assert list(first.map([-2])) == [2]
    with site.connect(ex.Farm(abs), 1, worker) as second:
        assert list(second.map([-3])) == [3]


def test_joined_workers_come_back_and_replace_each_other(site: Site) -> None:
    address = free_address()
    workers = [
        site.worker(f"node{number}.lab.example.org", join=f"tcp://{address}") for number in (1, 2)
    ]
    with site.connect(ex.Farm(WHERE), 2, listen=address, wait=60) as manager:
        stream = manager.map(range(60_000))
        seen = [next(stream) for _ in range(100)]
        # One slot dies and its supervisor starts another, one host is lost for good, and a new one comes.
        (slot,) = slots_of(workers[0].process.pid)
        os.kill(slot, signal.SIGKILL)
        workers[1].kill()
        site.worker("node3.lab.example.org", join=f"tcp://{address}")
        seen += stream
        assert [item for item, _ in seen] == list(range(60_000))
        assert eventually(lambda: "node3.lab.example.org" in by_name(manager))
        assert [item for item, _ in manager.map(range(100))] == list(range(100))


def beside_exoskel(place: Path) -> dict[str, str]:
    """Return the environment of a worker that has the packages of a place as well."""
    paths = [place, Path(ex.__file__).parents[1]]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Install a package here; hand out the environment of workers that have it too."""
    place = tmp_path / "installed"
    place.mkdir()
    (place / "lab_filters.py").write_text("def smooth(item):\n    return item / 2\n")
    monkeypatch.syspath_prepend(place)
    yield beside_exoskel(place)
    sys.modules.pop("lab_filters", None)


def smoothing() -> Callable[[int], tuple[float, int]]:
    """Make a task that can't be loaded without the package."""
    lab_filters = importlib.import_module("lab_filters")
    return lambda item: (lab_filters.smooth(item), __import__("os").getpid())


def test_a_worker_that_lacks_a_package_gets_no_items(
    site: Site, installed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It is named with what it lacks, and the next line of the hosts takes its place."""
    workers = [
        site.worker("node1.lab.example.org", env=installed),
        site.worker("node2.lab.example.org", slots=2),
        site.worker("node3.lab.example.org", env=installed),
    ]
    with site.connect(ex.Farm(smoothing()), 2, *workers) as manager:
        assert eventually(lambda: "node3.lab.example.org" in by_name(manager))
        results = list(manager.map(range(5000)))
        rows = by_name(manager)
    assert [item for item, _ in results] == [item / 2 for item in range(5000)]
    (unfit,) = rows["node2.lab.example.org"]
    assert (unfit.state, unfit.items, unfit.slots) == ("unfit", 0, 0)
    assert {
        row.state for name in ("node1", "node3") for row in rows[f"{name}.lab.example.org"]
    } == {"working"}
    warnings = [record.getMessage() for record in caplog.records if "lacks" in record.getMessage()]
    (warning,) = warnings
    assert "node2.lab.example.org" in warning
    assert "lab_filters" in warning
    assert "lost worker" not in caplog.text


def test_without_another_the_run_goes_on_with_fewer(
    site: Site, installed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    workers = [
        site.worker("node1.lab.example.org", env=installed),
        site.worker("node2.lab.example.org"),
    ]
    with site.connect(ex.Farm(smoothing()), 2, *workers) as manager:
        assert [item for item, _ in manager.map(range(100))] == [item / 2 for item in range(100)]
    assert "1 of 2 slots are ready" in caplog.text
    assert "node2.lab.example.org at 127.0.0.1 lacks lab_filters" in caplog.text


@pytest.mark.usefixtures("installed")
def test_when_all_lack_it_the_error_says_who_lacks_what(site: Site) -> None:
    workers = [site.worker(f"node{number}.lab.example.org") for number in (1, 2)]
    with pytest.raises(ex.NoWorkerError) as raised:
        site.connect(ex.Farm(smoothing()), 2, *workers)
    for name in ("node1", "node2"):
        assert f"{name}.lab.example.org at 127.0.0.1 lacks lab_filters" in str(raised.value)


def test_a_worker_that_joins_without_it_is_told_once(
    site: Site, installed: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """It comes back, and must not take the place of one that has what is needed."""
    address = free_address()
    without = site.worker("node1.lab.example.org", join=f"tcp://{address}")
    site.worker("node2.lab.example.org", join=f"tcp://{address}", env=installed)
    refusal = "can't run the program: it lacks lab_filters"
    with ThreadPoolExecutor() as pool:
        # The manager waits for a second slot, which comes when the first worker has been told.
        begin = pool.submit(site.connect, ex.Farm(smoothing()), 2, listen=address, wait=60)
        assert eventually(lambda: refusal in without.log.read_text())
        site.worker("node3.lab.example.org", join=f"tcp://{address}", env=installed)
        with begin.result() as manager:
            assert [item for item, _ in manager.map(range(100))] == [n / 2 for n in range(100)]
            assert by_name(manager)["node1.lab.example.org"][0].items == 0
    assert caplog.text.count("lacks lab_filters") == 1


def test_a_manager_that_listens_begins_with_those_who_came(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    address = free_address()
    worker = site.worker("node1.lab.example.org", join=f"tcp://{address}")
    # It is up: all that the wait has to be long enough for is its next attempt.
    assert eventually(lambda: "no session" in worker.log.read_text())
    with site.connect(ex.Farm(abs), 2, listen=address, wait=15) as manager:
        assert list(manager.map([-1])) == [1]
    assert "1 of 2 slots are ready" in caplog.text


def test_every_session_leaves_a_line_at_both_ends(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    worker = site.worker("node1.lab.example.org")
    with (
        caplog.at_level(logging.INFO, logger="exoskel.audit"),
        site.connect(ex.Farm(abs), 1, worker) as manager,
    ):
        assert list(manager.map([-1])) == [1]
    assert "accepted worker node1.lab.example.org" in caplog.text
    assert "accepted manager head.lab.example.org" in worker.log.read_text()


def test_output_from_another_host_cannot_rewrite_the_terminal(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = site.worker("node1.lab.example.org")
    with site.connect(ex.Farm(lambda item: print("\x1b[2J[local-1] item", item)), 1, worker) as one:
        assert list(one.map([1])) == [None]
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == r"[node1.lab.example.org] \u{1b}[2J[local-1] item 1"


def test_managers_of_several_threads_share_workers(site: Site) -> None:
    worker = site.worker("node1.lab.example.org", slots=2)
    sums: list[int] = []

    def run() -> None:
        with site.connect(ex.Farm(abs), 1, worker) as manager:
            sums.append(sum(manager.map(range(-1000, 0))))

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [sum(range(1001))] * 2


def test_a_revoked_manager_loses_its_session(site: Site, tmp_path: Path) -> None:
    given = tmp_path / "given.crl"
    made = tmp_path / "pki" / "revoked.crl"
    shutil.copy(made, given)
    worker = site.worker("node1.lab.example.org", "--revocation-list", str(given))
    with site.connect(ex.Farm(WHERE), 1, worker) as manager:
        stream = manager.map(itertools.count())
        assert next(stream)[0] == 0
        directory = str(tmp_path / "pki")
        assert (
            main(["pki", "revoke", "head.lab.example.org", "--directory", directory, "--json"]) == 0
        )
        # As an administrator would: the whole file at once.
        shutil.copy(made, tmp_path / "new.crl")
        os.replace(tmp_path / "new.crl", given)
        with pytest.raises(ex.NoWorkerError, match=r"revoked|certificate"):
            for _ in stream:
                pass


def test_a_policy_that_changes_counts_for_running_sessions(site: Site) -> None:
    workers = [site.worker(f"node{number}.lab.example.org") for number in (1, 2)]
    with site.connect(ex.Farm(WHERE), 2, *workers) as manager:
        stream = manager.map(itertools.count())
        seen: set[int] = set()
        while len(seen) < 2:
            seen.add(next(stream)[1])
        denied = site.place / "denied.toml"
        denied.write_text(POLICY + '\n[deny]\nworkers = ["node2.lab.example.org"]\n')
        os.replace(denied, site.policy)
        for _ in stream:
            if by_name(manager)["node2.lab.example.org"][0].slots == 0:
                break
        # What was under way there runs elsewhere, and in order.
        index, _ = next(stream)
        assert next(stream)[0] == index + 1
        assert by_name(manager)["node1.lab.example.org"][0].slots == 1


def test_a_ban_list_counts_for_running_sessions(site: Site) -> None:
    banned = site.place / "banned.txt"
    banned.write_text("# nobody yet\n")
    listed = site.place / "listed.toml"
    listed.write_text(POLICY + '\n[deny]\nban_list = "banned.txt"\n')
    os.replace(listed, site.policy)
    workers = [site.worker(f"node{number}.lab.example.org") for number in (1, 2)]
    with site.connect(ex.Farm(WHERE), 2, *workers) as manager:
        stream = manager.map(itertools.count())
        seen: set[int] = set()
        while len(seen) < 2:
            seen.add(next(stream)[1])
        new = site.place / "new.txt"
        new.write_text("node2.lab.example.org\n")
        os.replace(new, banned)
        for _ in stream:
            if by_name(manager)["node2.lab.example.org"][0].slots == 0:
                break
        assert by_name(manager)["node1.lab.example.org"][0].slots == 1


def test_a_worker_goes_on_with_a_renewed_certificate(site: Site) -> None:
    name = "node1.lab.example.org"
    worker = site.worker(name)
    assert eventually(lambda: len(slots_of(worker.process.pid)) == 1)

    def connected() -> ex.Manager:
        # On a machine on which it expires before its handshake, it has to last for longer.
        for seconds in (8, 16, 32, 64):
            # It is read at each handshake. The worker's start, which may take long, is none of its time.
            site.issue("worker", name, "--force", "--days", str(seconds / 86_400))
            with contextlib.suppress(ex.NoWorkerError):
                return site.connect(ex.Farm(WHERE), 1, worker)
        raise AssertionError("none lasts long enough")

    def used() -> list[int]:
        return [number for row in by_name(manager)[name] for number in row.process_ids]

    with connected() as manager:
        # The same file with a certificate that lasts; the session that runs ends with the old one's time.
        site.issue("worker", name, "--force")
        for expected, (index, process) in enumerate(manager.map(itertools.count())):
            assert index == expected
            # The first session may have ended before the first item.
            if len(used()) > 1 and process == used()[-1]:
                break


def test_a_joining_worker_is_told_the_manager_s_name(site: Site) -> None:
    address = free_address()
    worker = site.worker(
        "node1.lab.example.org", "--manager-name", MANAGER, join=f"tcp://{address}"
    )
    with site.connect(ex.Farm(abs), 1, listen=address, wait=60) as manager:
        assert list(manager.map([-1])) == [1]
    assert f"accepted manager {MANAGER}" in worker.log.read_text()


def test_a_joining_worker_ends_at_a_manager_of_another_name(site: Site) -> None:
    """Whether it is told the name, or the address says it: its first manager is another one, and it says so once."""
    address = free_address()
    port = address.rpartition(":")[2]
    credential = site.issue("worker", "node1.lab.example.org")
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--credential", str(credential)]
    told = ["--join", f"tcp://{address}", "--manager-name", "tail.lab.example.org"]
    with ThreadPoolExecutor() as pool:
        # The manager waits for another worker, which comes when these have ended.
        begin = pool.submit(site.connect, ex.Farm(abs), 1, listen=address, wait=60)
        for way, name in ((told, told[-1]), (["--join", f"tcp://localhost:{port}"], "localhost")):
            done = subprocess.run(
                [*command, *way, "--slots", "3"],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            assert done.returncode == 1
            wrong = [line for line in done.stderr.splitlines() if MANAGER in line]
            assert len(wrong) == 1, done.stderr
            assert f'expected name "{name}"' in wrong[0]
            assert "--manager-name" in wrong[0]
            assert "accepted" not in done.stderr
        site.worker("node3.lab.example.org", join=f"tcp://{address}")
        with begin.result() as manager:
            assert list(manager.map([-1])) == [1]
            assert set(by_name(manager)) == {"node3.lab.example.org"}


def test_a_manager_hears_that_a_worker_expected_another_name(site: Site) -> None:
    address = free_address()
    joins = ["--manager-name", "tail.lab.example.org", "--join", f"tcp://{address}", "--slots", "1"]
    credential = ["--credential", str(site.issue("worker", "node1.lab.example.org"))]
    worker = [sys.executable, "-P", "-m", "exoskel", "worker", *joins, *credential]
    log = site.place / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(worker, stdout=subprocess.DEVNULL, stderr=errors) as process,
    ):
        try:
            # It is up: all that the wait has to be long enough for is its next attempt.
            assert eventually(lambda: "no session" in log.read_text())
            expected = "it expected another name than ours"
            with pytest.raises(ex.NoWorkerError, match=expected):
                site.connect(ex.Farm(abs), 1, listen=address, wait=15)
            assert process.wait(60) == 1
        finally:
            process.kill()


def test_a_worker_of_another_name_is_told_with_the_line_to_write(site: Site) -> None:
    """At once, and beside one that works as well."""
    worker = site.worker("node1.lab.example.org")
    line = f"list it as `{worker.address.removeprefix('tcp://')} node1.lab.example.org`"
    with pytest.raises(ex.NoWorkerError, match=re.escape(line)) as raised:
        site.connect(ex.Farm(abs), 1, workers=[worker.address], wait=3600)
    assert str(raised.value).startswith("no worker can be had")
    # The worker says what it was told.
    assert eventually(lambda: "it expected another name than ours" in worker.log.read_text())


def test_slots_that_did_not_come_are_told_with_the_reason(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    right, wrong = (site.worker(f"node{number}.lab.example.org") for number in (1, 2))
    hosts = [right.line, wrong.address]
    with site.connect(ex.Farm(abs), 2, workers=hosts) as manager:
        assert list(manager.map([-1])) == [1]
    (said,) = [text for text in caplog.messages if "1 of 2 slots are ready" in text]
    assert 'expected name "127.0.0.1"' in said


def test_a_worker_asks_with_one_slot_at_a_time_and_says_once_what_is_wrong(site: Site) -> None:
    address = free_address()
    worker = site.worker("node1.lab.example.org", join=f"tcp://{address}", slots=3)
    assert eventually(lambda: "no session" in worker.log.read_text())
    with site.connect(ex.Farm(WHERE), 3, listen=address, wait=60) as manager:
        assert by_name(manager)["node1.lab.example.org"][0].slots == 3
        # Later the slots that come next say that nobody is there any more.
        written = worker.log.read_text()
    assert written.count("no session with the manager") == 1, written
    assert written.count("accepted manager") == 3


def test_a_slot_that_is_not_needed_waits_to_be_called(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The manager has what it asked for; when a worker is lost, it calls the slot that waits."""
    address = free_address()
    first = site.worker("node1.lab.example.org", join=f"tcp://{address}")
    with caplog.at_level(logging.INFO, logger="exoskel.audit"):
        with site.connect(ex.Farm(WHERE), 1, listen=address, wait=60) as manager:
            second = site.worker("node2.lab.example.org", join=f"tcp://{address}", slots=2)
            port = int(address.rpartition(":")[2])
            assert eventually(lambda: connections(port) == 2)
            first.kill()
            assert [item for item, _ in manager.map(range(100))] == list(range(100))
            assert by_name(manager)["node2.lab.example.org"][0].slots == 1
            # Its other slot waits now; at the end nobody calls it.
            assert eventually(lambda: connections(port) == 2)
        assert "no session" not in caplog.text
    assert "refused" not in second.log.read_text().partition("accepted")[0]


def test_who_waits_is_called_by_the_rules_of_now(site: Site) -> None:
    """A wait may last for days. What has changed since, at either end, counts when it is over."""
    address = free_address()
    port = int(address.rpartition(":")[2])
    names = [f"node{number}.lab.example.org" for number in (1, 2)]
    rules = site.place / f"home-{names[1]}" / "policy.toml"
    site.worker(names[0], join=f"tcp://{address}")
    with site.connect(ex.Farm(iter), 1, listen=address, wait=60) as manager:
        second = site.worker(names[1], join=f"tcp://{address}")
        assert eventually(lambda: connections(port) == 2)

        replace(rules, '[allow]\nmanagers = ["nobody.example.org"]\n')
        assert eventually(lambda: "no session" in second.log.read_text()), "nobody has called it"
        replace(rules, POLICY)
        assert eventually(lambda: connections(port) == 2)

        # The change that makes room for it.
        without_pickles = POLICY.replace('results = "pickle"\n', "")
        replace(site.policy, f'{without_pickles}\n[allow]\nworkers = ["{names[1]}"]\n')
        assert eventually(lambda: names[1] in by_name(manager))
        (outcome,) = manager.map([[1]], errors="return")
        assert isinstance(outcome, ex.ResultRejectedError)


def connections(port: int) -> int:
    """Count the connections that a port of this host has."""
    local = f":{port:04X} "
    with open("/proc/net/tcp", encoding="ascii") as file:
        rows = [line.split(maxsplit=4) for line in file.readlines()[1:]]
    return sum(f"{row[1]} ".endswith(local) and row[3] == "01" for row in rows)


def test_versions_that_differ_are_named_once_for_each_worker(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    places = []
    for version in ("1.0", "2.0"):
        place = tmp_path / version
        (place / "lab_filters-1.dist-info").mkdir(parents=True)
        (place / "lab_filters.py").write_text("def smooth(item):\n    return item / 2\n")
        facts = f"Metadata-Version: 2.1\nName: lab_filters\nVersion: {version}\n"
        (place / "lab_filters-1.dist-info/METADATA").write_text(facts)
        places.append(place)
    monkeypatch.syspath_prepend(places[0])
    workers = [
        site.worker(f"node{number}.lab.example.org", slots=2, env=beside_exoskel(place))
        for number, place in enumerate(places)
    ]
    try:
        with site.connect(ex.Farm(smoothing()), 4, *workers) as manager:
            assert [item for item, _ in manager.map(range(10))] == [item / 2 for item in range(10)]
            assert eventually(lambda: manager.status().slots_ready == 4)
    finally:
        sys.modules.pop("lab_filters", None)
    differ = [text for text in caplog.messages if "other versions" in text]
    assert len(differ) == 1
    assert "node1.lab.example.org at 127.0.0.1" in differ[0]
    assert "lab_filters 2.0, not 1.0" in differ[0]


def test_a_wire_that_the_worker_makes_stricter_is_told_of(site: Site) -> None:
    strict = site.worker("node1.lab.example.org", policy=POLICY.replace('"plain"', '"encrypted"'))
    lax = site.worker("node2.lab.example.org")
    with site.connect(ex.Farm(abs), 2, strict, lax) as manager:
        summary = manager.summary()
    asked = {
        worker.name[:5]: (worker.protection, worker.own_protection) for worker in summary.workers
    }
    assert asked == {"node1": ("encrypted", "plain"), "node2": ("plain", "plain")}
    (note,) = [line for line in str(summary).splitlines() if line.startswith("stricter wire")]
    assert "node1.lab.example.org: encrypted" in note
    assert "without a policy file" in " ".join(str(summary).split())
    assert "stricter wire: worker node1.lab.example.org" in summary._repr_html_()
