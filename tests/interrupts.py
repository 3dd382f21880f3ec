"""Ctrl-C at random moments: programs of every kind end soon, with one traceback, and leave nothing.

``python -m tests.interrupts --count 300`` plays so many seeds; a failure names its own.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

from tests.processes import eventually, gone

# A promise to users, looked at by the command: how busy the machine of a test is, nobody knows.
SECONDS_MAX = 2.0
# Behind this a program hangs.
HANGS_SECONDS = 60.0
# A program has done all it does by then, its first slot and its last result included.
MOMENT_MAX = 1.2

_HEAD = """
    import asyncio, concurrent.futures, itertools, sys, threading, time, traceback
    import exoskel as ex

    def task(item):
        time.sleep(0.003)
        if item % 50 == 0:
            print("item", item, flush=True)
        return item

    def go():
        # Whoever interrupts begins to count now.
        sys.__stdout__.write("go\\n")
        sys.__stdout__.flush()
"""

PROGRAMS = {
    "map": """
        go()
        with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
            for result in manager.map(itertools.count()):
                pass
    """,
    "map without a block": """
        go()
        manager = ex.Manager(ex.Pipeline(ex.Farm(task), ex.Seq(task)), ex.ParDegree(2))
        for result in manager.map(itertools.count(), as_completed=True):
            pass
    """,
    "progress": """
        go()
        with ex.Manager(ex.Farm(task), ex.ParDegree(2), timeout=5) as manager:
            for result in manager.map(itertools.count(), progress=True):
                pass
    """,
    "executor": """
        go()
        with ex.Executor(2) as executor:
            while True:
                futures = [executor.submit(task, item) for item in range(1, 300)]
                for future in concurrent.futures.as_completed(futures):
                    future.result()
    """,
    "executor without a block": """
        go()
        executor = ex.Executor(2)
        while True:
            sum(executor.map(task, range(1, 300)))
    """,
    "executor with callbacks": """
        go()
        executor = ex.Executor(2)
        done = []
        while True:
            for item in range(1, 100):
                executor.submit(task, item).add_done_callback(done.append)
            while len(done) < 50:
                time.sleep(0.001)
            done.clear()
    """,
    "asyncio": """
        async def main():
            loop = asyncio.get_running_loop()
            with ex.Executor(2) as executor:
                while True:
                    calls = [loop.run_in_executor(executor, task, item) for item in range(1, 100)]
                    await asyncio.gather(*calls)
        go()
        asyncio.run(main())
    """,
    "asyncio and threads": """
        def drain(manager):
            return sum(manager.map(range(1, 2000)))

        async def main():
            with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
                while True:
                    await asyncio.gather(*(asyncio.to_thread(drain, manager) for _ in range(3)))
        go()
        asyncio.run(main())
    """,
    "threads": """
        def drain(manager):
            while True:
                sum(manager.map(range(1, 2000)))

        go()
        with (
            concurrent.futures.ThreadPoolExecutor(3) as pool,
            ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager,
        ):
            for future in [pool.submit(drain, manager) for _ in range(3)]:
                future.result()
    """,
    "daemon threads": """
        def drain(manager):
            while True:
                sum(manager.map(range(1, 2000)))

        manager = ex.Manager(ex.Farm(task), ex.ParDegree(1))
        threads = [threading.Thread(target=drain, args=(manager,), daemon=True) for _ in range(4)]
        go()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    """,
    "manager after manager": """
        go()
        while True:
            with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
                list(manager.map(range(1, 20)))
    """,
    "executor after executor": """
        go()
        while True:
            with ex.Executor(2) as executor:
                futures = [executor.submit(task, item) for item in range(1, 20)]
                concurrent.futures.wait(futures)
    """,
    "the end of a program": """
        # What is left for the interpreter's end: a manager, an executor with calls and its collector.
        manager = ex.Manager(ex.Farm(task), ex.ParDegree(1))
        executor = ex.Executor(1)
        stream = manager.map(itertools.count())
        next(stream)
        futures = [executor.submit(task, item) for item in range(1, 100)]
        for future in futures:
            future.add_done_callback(lambda done: None)
        go()
    """,
    "notebook": """
        manager = ex.Manager(ex.Farm(task), ex.ParDegree(2))
        go()
        try:
            # A cell.
            for result in manager.map(itertools.count(), progress=True):
                pass
        except KeyboardInterrupt:
            # The kernel shows it and waits for the next cell.
            traceback.print_exc()
        assert list(manager.map(range(1, 40))) == list(range(1, 40))
        manager.close()
        print("the next cell is done", file=sys.stderr, flush=True)
    """,
}


@dataclasses.dataclass
class Interrupted:
    """What became of a program that was interrupted."""

    program: str
    seconds: float
    """From the signal to its end."""
    code: int
    errors: str
    """What it wrote to standard error."""
    left: list[int]
    """Its processes that still run."""

    def faults(self) -> list[str]:
        """Say what is not as promised, but for its time."""
        is_notebook = self.program == "notebook"
        tracebacks = self.errors.count("Traceback (most recent call last)")
        # What led to an exception stands above it with a head of its own; that is one traceback to whoever reads it.
        chained = len(re.findall("During handling of the above|was the direct cause", self.errors))
        expected = "the next cell is done" if is_notebook else "KeyboardInterrupt"
        lines = [line for line in self.errors.splitlines() if line.strip()]
        # Python's own end is interrupted: it says so without an exception of the program.
        at_exit = self.program == "the end of a program"
        # Before Python 3.12, what interrupts the making of a class, as an import does it, is the cause of another exception.
        in_class = (
            sys.version_info < (3, 12) and "RuntimeError: Error calling __set_name__" in self.errors
        )
        found = {
            "it hung": self.seconds > HANGS_SECONDS,
            f"{tracebacks} tracebacks": tracebacks - chained > 1
            or (tracebacks == 0 and not at_exit),
            # What `asyncio.run` does with Ctrl-C is Python's own.
            f"{chained} chained exceptions": chained
            > int(self.program.startswith("asyncio")) + int(in_class),
            f"code {self.code}": not in_class
            and self.code
            not in ({0} if is_notebook else {0, -signal.SIGINT} if at_exit else {-signal.SIGINT}),
            "an exception was ignored": "Exception ignored" in self.errors and not at_exit,
            "a fatal error": "Fatal Python error" in self.errors,
            "a panic": "panicked" in self.errors,
            "another end": not in_class
            and not (lines[-1].startswith(expected) if lines else at_exit),
            f"processes {self.left} are left": bool(self.left),
        }
        return [fault for fault, is_so in found.items() if is_so]


def interrupt(seed: int, place: Path) -> Interrupted:
    """Run the program of a seed and interrupt it.

    Parameters
    ----------
    seed : int
        Decides the program, the moment, and who gets the signal.
    place : Path
        A directory for the program.

    Returns
    -------
    Interrupted
        What became of it.
    """
    chance = random.Random(seed)
    names = list(PROGRAMS)
    name = names[seed % len(names)]
    moment = chance.uniform(0, MOMENT_MAX) ** 2 / MOMENT_MAX
    to_all = chance.random() < 0.5
    script = place / "program.py"
    script.write_text(textwrap.dedent(_HEAD) + textwrap.dedent(PROGRAMS[name]))
    with (
        open(place / "errors", "w+", encoding="utf-8") as errors,
        subprocess.Popen(
            [sys.executable, "-u", str(script)],
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            while (line := process.stdout.readline()) != b"go\n":
                assert line, f"{name} ended before it began"
            # What it prints from now on is not to stand in its way.
            time.sleep(moment)
            group = session(process.pid)
            began = time.monotonic()
            if to_all:
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(signal.SIGINT)
            try:
                process.communicate(timeout=HANGS_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)
                process.communicate()
            seconds = time.monotonic() - began
            eventually(lambda: all(map(gone, group)), 30)
            left = [number for number in group if not gone(number)]
        finally:
            process.kill()
        errors.seek(0)
        return Interrupted(name, seconds, process.returncode, errors.read(), left)


def session(leader: int) -> list[int]:
    """List the processes of a session."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[3]) == leader:
                found.append(int(entry.name))
    return found


def main() -> int:
    """Interrupt so many programs; return how many did not end as promised, 100 at most."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="how many seeds to play")
    parser.add_argument("--seed", type=int, default=1, help="the first one")
    arguments = parser.parse_args()
    failed = 0
    slowest = 0.0
    for seed in range(arguments.seed, arguments.seed + arguments.count):
        with tempfile.TemporaryDirectory() as place:
            interrupted = interrupt(seed, Path(place))
        slowest = max(slowest, interrupted.seconds)
        faults = interrupted.faults()
        if interrupted.seconds > SECONDS_MAX:
            faults.append(f"it took {interrupted.seconds:.2f} s")
        if faults:
            failed += 1
            print(f"--- seed {seed}, {interrupted.program}: {', '.join(faults)}")
            print(textwrap.indent(interrupted.errors, "    "), flush=True)
    print(
        f"{failed} of {arguments.count} did not end as promised; the slowest took {slowest:.2f} s"
    )
    return min(failed, 100)


if __name__ == "__main__":
    sys.exit(main())
