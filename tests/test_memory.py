"""Long streams, large results and callers that don't read: memory stays bounded at both ends.

Each runs in a process of its own, so that its peak (VmHWM, in KiB) is that of nothing else.
"""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from tests.site import Site

HEAD = """
import itertools, json
import exoskel as ex

def peaks(manager):
    processes = [pid for worker in manager.summary().workers for pid in worker.process_ids]
    return [peak(pid) for pid in ("self", *processes)]

def peak(process):
    with open(f"/proc/{process}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

"""


def run(tmp_path: Path, text: str) -> dict[str, Any]:
    script = tmp_path / "job.py"
    script.write_text(HEAD + textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def test_ten_million_items_in_bounded_memory(tmp_path: Path) -> None:
    """What the first 500,000 items have taken is all that the next 9,500,000 take."""
    answer = run(
        tmp_path,
        """
        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
            stream = manager.map(range(10_000_000))
            total = sum(itertools.islice(stream, 500_000))
            early = peaks(manager)
            total += sum(stream)
            late = peaks(manager)
        print(json.dumps({"total": total, "early": early, "late": late}))
        """,
    )
    assert answer["total"] == sum(range(10_000_000))
    assert len(answer["early"]) == len(answer["late"]) == 3
    for early, late in zip(answer["early"], answer["late"], strict=True):
        assert late < early + 32 * 1024
        assert late < 128 * 1024


def test_a_million_items_through_a_pipeline_out_of_order(tmp_path: Path) -> None:
    answer = run(
        tmp_path,
        """
        program = ex.Pipeline(ex.Farm(abs), ex.Farm(abs))
        with ex.Manager(program, ex.ParDegree(2)) as manager:
            stream = manager.map(range(1_000_000), as_completed=True)
            total = sum(itertools.islice(stream, 200_000))
            early = peaks(manager)
            total += sum(stream)
            late = peaks(manager)
        print(json.dumps({"total": total, "early": early, "late": late}))
        """,
    )
    assert answer["total"] == sum(range(1_000_000))
    for early, late in zip(answer["early"], answer["late"], strict=True):
        assert late < early + 32 * 1024


def test_results_far_larger_than_items_wait_at_the_workers_not_at_the_manager(
    tmp_path: Path,
) -> None:
    """A thousand results of 1 MiB, a first item that is slow, and a caller that reads late."""
    answer = run(
        tmp_path,
        """
        import os, tempfile, time

        def task(number):
            end = time.monotonic() + 60
            while number == 0 and not os.path.exists(opened) and time.monotonic() < end:
                time.sleep(0.005)
            return bytes(1 << 20)

        with tempfile.TemporaryDirectory() as place:
            opened = place + "/opened"
            with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
                stream = manager.map(range(1000))
                # Others run meanwhile; whatever can pile up has done so when the second stream is through.
                beside = manager.map(range(1, 200))
                count = sum(len(result) for result in itertools.islice(beside, 100))
                open(opened, "w").close()
                count += len(next(stream))
                count += sum(map(len, beside)) + sum(map(len, stream))
                late = peaks(manager)
        print(json.dumps({"count": count, "late": late}))
        """,
    )
    assert answer["count"] == 1199 << 20
    assert all(late < 512 * 1024 for late in answer["late"])


def test_a_slot_that_is_always_busy_keeps_no_result_that_it_has_sent(tmp_path: Path) -> None:
    """Each task lasts longer than sending a result does, so the next item is always there when it ends."""
    answer = run(
        tmp_path,
        """
        import time

        def task(number):
            time.sleep(0.001)
            return bytes([number % 256]) * (64 << 10)

        with ex.Manager(ex.Farm(task), ex.ParDegree(1)) as manager:
            count = sum(map(len, manager.map(range(3000))))
            late = peaks(manager)
        print(json.dumps({"count": count, "late": late}))
        """,
    )
    assert answer["count"] == 3000 * (64 << 10)
    assert answer["late"][1] < 96 * 1024


def test_large_items_are_taken_from_the_input_as_they_fit(tmp_path: Path) -> None:
    answer = run(
        tmp_path,
        """
        with ex.Manager(ex.Farm(len), ex.ParDegree(2)) as manager:
            total = sum(manager.map(bytes(4 << 20) for _ in range(400)))
            late = peaks(manager)
        print(json.dumps({"total": total, "late": late}))
        """,
    )
    assert answer["total"] == 400 * (4 << 20)
    assert all(late < 512 * 1024 for late in answer["late"])


def test_large_results_of_closed_streams_do_not_stay_at_the_workers(tmp_path: Path) -> None:
    answer = run(
        tmp_path,
        """
        with ex.Manager(ex.Farm(bytes), ex.ParDegree(2)) as manager:
            for _ in range(100):
                stream = manager.map(itertools.repeat(8 << 20))
                assert len(next(stream)) == 8 << 20
                stream.close()
            late = peaks(manager)
        print(json.dumps({"late": late}))
        """,
    )
    assert all(late < 192 * 1024 for late in answer["late"])


def test_many_streams_and_functions_leave_nothing_behind(tmp_path: Path) -> None:
    answer = run(
        tmp_path,
        """
        import functools, operator

        def streams(manager, count):
            for _ in range(count):
                # One is read to its end, one is closed early, one is dropped.
                assert sum(manager.map(range(10))) == 45
                stream = manager.map(itertools.count())
                next(stream)
                stream.close()
                next(manager.map(itertools.count()))

        def submits(executor, count):
            for number in range(count):
                assert executor.submit(functools.partial(operator.add, number), 1).result() == number + 1

        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager, ex.Executor(1) as executor:
            streams(manager, 100)
            submits(executor, 600)
            early = [*peaks(manager), *peaks(executor)]
            streams(manager, 1000)
            submits(executor, 3000)
            late = [*peaks(manager), *peaks(executor)]
        print(json.dumps({"early": early, "late": late}))
        """,
    )
    for early, late in zip(answer["early"], answer["late"], strict=True):
        assert late < early + 32 * 1024


def test_large_results_go_back_to_the_kernel_when_they_are_dropped(tmp_path: Path) -> None:
    answer = run(
        tmp_path,
        """
        def resident():
            with open("/proc/self/status") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

        with ex.Manager(ex.Farm(bytes), ex.ParDegree(2)) as manager:
            kept = list(manager.map([1 << 20] * 400))
            full = resident()
            del kept
            print(json.dumps({"full": full, "empty": resident()}))
        """,
    )
    assert answer["full"] > 400 * 1024
    # What glibc keeps for the next ones is at most twice the largest block that it cuts from the heap.
    assert answer["empty"] < answer["full"] - 300 * 1024


def test_answers_of_strangers_take_no_more_memory_than_stated(site: Site) -> None:
    """SECURITY.md states a bound: 256 MiB for results, twice the largest one, and 1 MiB for each session.

    Method: four slots of a worker in no trusted domain answer 8 MiB for each of 400 items, faster than the caller takes them.
    """
    result_mebibytes, slots = 8, 4
    worker = site.worker("vm7.rented.example.org", slots=slots)
    script = f"""
        import hashlib, re
        from pathlib import Path

        def peak():
            return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024

        def large(item):
            return bytes([item % 256]) * ({result_mebibytes} << 20)

        with connect(ex.Farm(large), slots={slots}) as manager:
            before = peak()
            for result in manager.map(range(400)):
                # Slower than what makes them.
                assert hashlib.pbkdf2_hmac("sha256", result, b"", 1)
            print(peak() - before)
    """
    done = site.run(script, *[worker.line])
    assert done.returncode == 0, done.stderr
    assert 16 < float(done.stdout) < 256 + 2 * result_mebibytes + slots
