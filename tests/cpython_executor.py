"""CPython's own tests of executors, with ours: ``python -m unittest tests.cpython_executor``.

For an interpreter that brings them (in the package `test.test_concurrent_futures`, which was one file before); `test_cpython_executor`
finds one and runs this. Of CPython's classes, those are here that say what any executor does. Those of thread pools and process pools alone
(`test_thread_pool`, `test_process_pool`, `test_deadlock`) look at threads, queues and pipes that another executor doesn't have.
"""

from __future__ import annotations

import subprocess
import sys
import unittest
from typing import Any

from test import test_concurrent_futures  # type: ignore[import-not-found]

if hasattr(test_concurrent_futures, "__path__"):
    from test.test_concurrent_futures import (  # type: ignore[import-not-found]
        executor,
        test_as_completed,
        test_init,
        test_shutdown,
        test_wait,
        util,
    )
else:
    executor = test_as_completed = test_init = test_shutdown = test_wait = test_concurrent_futures
    util = test_concurrent_futures

from exoskel import Executor


class ExoskelMixin(util.ExecutorMixin):  # type: ignore[misc]
    """What `util.ProcessPoolSpawnMixin` is for process pools."""

    executor_type = Executor


class ExecutorTest(ExoskelMixin, executor.ExecutorTest, util.BaseTestCase):  # type: ignore[misc]
    """Submitted calls, mapped calls, bad numbers of workers, references that go."""


class WaitTests(ExoskelMixin, test_wait.WaitTests, util.BaseTestCase):  # type: ignore[misc]
    """`concurrent.futures.wait`."""


class AsCompletedTests(ExoskelMixin, test_as_completed.AsCompletedTests, util.BaseTestCase):  # type: ignore[misc]
    """`concurrent.futures.as_completed`."""


class ExecutorShutdownTest(ExoskelMixin, test_shutdown.ExecutorShutdownTest, util.BaseTestCase):  # type: ignore[misc]
    """The end of executors, of scripts that forget them too."""


class InitializerTest(ExoskelMixin, test_init.InitializerMixin, util.BaseTestCase):  # type: ignore[misc]
    """A function that each slot runs first."""


def run_script(*arguments: str) -> tuple[int, bytes, bytes]:
    """Stand in for `assert_python_ok`: the script's import is ours, and what slots print has no name of a slot."""
    *options, script = arguments
    script = script.replace("from concurrent.futures import", "from exoskel import")
    done = subprocess.run([sys.executable, *options, script], capture_output=True, check=False)
    if done.returncode:
        raise AssertionError(done.stderr.decode())
    lines = done.stdout.splitlines(keepends=True)
    printed = b"".join(line.partition(b"] ")[2] or line for line in lines)
    return done.returncode, printed, done.stderr


def setUpModule() -> None:
    """Have the scripts of the shutdown tests run with ours."""
    vars(test_shutdown)["assert_python_ok"] = run_script


def load_tests(loader: unittest.TestLoader, _tests: Any, _pattern: Any) -> unittest.TestSuite:
    """Leave CPython's own classes out, which are imported here as modules."""
    ours = (ExecutorTest, WaitTests, AsCompletedTests, ExecutorShutdownTest, InitializerTest)
    return unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in ours)
