"""What the creator of a job learns when somebody else has ended it: nothing of it looks like work that is done."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

import pytest

import exoskel as ex
from exoskel.cli import main
from exoskel.job_process import JobNode

SECONDS = 60.0
# As a shell says it of what SIGTERM has ended.
TERMINATED = 128 + signal.SIGTERM
JOINING = """
import time
from exoskel import links
links.init().ready()
time.sleep(600)
"""


def goes_on(here: JobNode) -> None:
    here.ready()
    threading.Event().wait()


def returns(here: JobNode) -> int:
    return here.rank


def test_who_has_more_to_do_says_so_by_its_exit_code(tmp_path: Path) -> None:
    (tmp_path / "joining.py").write_text(JOINING)
    with ex.Job() as job:
        function = job.start(goes_on, count=2)
        program = job.start([sys.executable, "joining.py"], cwd=tmp_path)
        asleep = job.start(["sleep", "600"])
        done = job.start(returns, count=2)
        function.result(SECONDS)
        program.result(SECONDS)
        assert done.values(SECONDS) == [0, 1]
        assert main(["job", "end", job._state.job]) == 0
        assert function.wait(SECONDS) == [TERMINATED] * 2
        assert program.wait(SECONDS) == [TERMINATED]
        assert asleep.wait(SECONDS) == [-signal.SIGTERM]
        assert done.wait(SECONDS) == [0, 0]
        with pytest.raises(
            ex.ProcessEndedError, match="ended on its host, as by `exoskel job end`"
        ):
            function.values(SECONDS)
        said = [one.stderr for one in job.summary().processes if one.exit_code != 0]
        assert len(said) == 4
        assert all("exoskel job end" in one for one in said)


def test_the_creator_ends_its_processes_in_good_order() -> None:
    with ex.Job() as job:
        function = job.start(goes_on)
        function.result(SECONDS)
    assert function.wait(SECONDS) == [0]
