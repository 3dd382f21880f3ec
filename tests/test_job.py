"""Jobs: processes on request, which know each other, and end together."""

import gc
import os
import pickle
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import children, eventually, gone

from exoskel import Job, LinkError, ProcessEndedError, RefusedError, Sandbox, Ssh, links
from exoskel.job_process import JobNode

# Far more than anything here takes.
SECONDS = 60.0


@pytest.fixture
def job() -> Iterator[Job]:
    with Job() as job:
        yield job


def add_norm(here: JobNode, offset: int = 0) -> None:
    """What a process of the tests is there for."""

    @here.process.handler
    def norm() -> int:
        return here.rank + offset

    @here.process.handler
    def whereabouts() -> list[object]:
        return [here.rank, here.size, here.name, os.getpid()]


def test_processes_answer_when_their_function_has_returned(job: Job) -> None:
    ranks = job.start(add_norm, count=3, arguments=[10]).result(timeout=SECONDS)
    assert [rank.rank for rank in ranks] == [0, 1, 2]
    assert [rank.request("norm").result() for rank in ranks] == [10, 11, 12]
    told = [rank.request("whereabouts").result() for rank in ranks]
    assert [one[:2] for one in told] == [[0, 3], [1, 3], [2, 3]]
    # Each proves which process of which job it is.
    names = [one[2] for one in told]
    assert len(set(names)) == 3
    assert all(
        name.partition("#")[2].startswith(f"{rank.number}.")
        for name, rank in zip(names, ranks, strict=True)
    )
    assert all(rank.exit_code is None for rank in ranks)


def ring(here: JobNode) -> None:
    """Send round what each process is."""
    has_come = threading.Event()
    came: list[int] = []

    @here.process.handler
    def take(what: int) -> None:
        came.append(what)
        has_come.set()

    here.peers[(here.rank + 1) % here.size].post("take", here.rank)
    assert has_come.wait(SECONDS)

    @here.process.handler
    def taken() -> int:
        return came[0]


def test_siblings_talk_directly(job: Job) -> None:
    ranks = job.start(ring, count=4).result(timeout=SECONDS)
    assert [rank.rank for rank in ranks] == [0, 1, 2, 3]


def shaped(here: JobNode, length: int) -> object:
    return {"rank": here.rank, "field": np.full(length, float(here.rank))}


def test_what_functions_return_comes_back(job: Job) -> None:
    values = job.start(shaped, count=3, arguments=[5]).values(timeout=SECONDS)
    assert [value["rank"] for value in values] == [0, 1, 2]
    assert [value["field"].tolist() for value in values] == [[float(rank)] * 5 for rank in range(3)]
    started = job.start(fail_at_one, count=2)
    with pytest.raises(ProcessEndedError, match="one is not wanted here"):
        started.values(timeout=SECONDS)
    assert started[0].result(SECONDS).value(SECONDS) is None
    waiting = job.start(wait_for_nobody)
    with pytest.raises(TimeoutError, match="not returned in 1 of 1 processes within 0"):
        waiting.values(timeout=0)


def return_later(here: JobNode) -> int:
    """Return when it was called, and when something was posted to it."""
    called = threading.Event()
    edges = here.process.inbox("edges")

    @here.process.handler
    def call() -> None:
        called.set()

    here.ready()
    assert called.wait(SECONDS)
    return here.rank + int(edges.get(SECONDS))


def test_functions_that_were_called_before_they_return_have_values(job: Job) -> None:
    started = job.start(return_later, count=2)
    for process in started.result(timeout=SECONDS):
        process.post("edges", 10)
        process.request("call").result(SECONDS)
    assert started.values(timeout=SECONDS) == [10, 11]
    assert started[1].result().value(timeout=SECONDS) == 11


def wait_for_nobody(here: JobNode) -> None:
    here.ready()
    threading.Event().wait()


def test_processes_have_the_limits_of_who_has_started_them(job: Job) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    [said] = job.start(limit_of_descriptors).values(timeout=SECONDS)
    assert said == [soft, hard]


def limit_of_descriptors(here: JobNode) -> list[int]:
    return list(resource.getrlimit(resource.RLIMIT_NOFILE))


def fail_at_one(here: JobNode) -> None:
    if here.rank == 1:
        raise ValueError("one is not wanted here")
    add_norm(here)


def test_a_function_that_raises_ends_its_process_alone(job: Job) -> None:
    started = job.start(fail_at_one, count=3)
    with pytest.raises(
        ProcessEndedError, match="has ended with exit code 1: ValueError: one is not wanted here"
    ) as caught:
        started.result(timeout=SECONDS)
    assert caught.value.exit_code == 1
    assert started[0].result(SECONDS).request("norm").result() == 0
    failed = job.summary().processes[1]
    assert (failed.rank, failed.exit_code) == (1, 1)
    assert "Traceback" in failed.stderr
    assert "one is not wanted here" in str(job.summary())


def test_programs_have_exit_codes_and_ends_of_what_they_say(job: Job) -> None:
    words = [
        sys.executable,
        "-c",
        "import os, sys; print(os.environ['WHAT'], os.getcwd(), file=sys.stderr); sys.exit(3)",
    ]
    started = job.start(words, count=2, cwd="/", env={"WHAT": "weather"})
    assert started.wait(timeout=SECONDS) == [3, 3]
    for row in job.summary().processes:
        assert row.stderr.strip() == "weather /"
        assert row.exit_code == 3
        assert row.memory_bytes > 1 << 20


def test_programs_that_do_not_join_know_their_rank(job: Job) -> None:
    started = job.start(["sh", "-c", "echo $EXOSKEL_RANK of $EXOSKEL_SIZE >&2"], count=2)
    started.wait(SECONDS)
    said = [row.stderr.strip() for row in job.summary().processes]
    assert said == ["0 of 2", "1 of 2"]


def warn_and_leave(here: JobNode) -> None:
    @here.process.handler
    def leave() -> None:
        print("KeyError: 'handled'", file=sys.stderr, flush=True)
        os._exit(0)


def test_what_has_ended_well_has_no_line_of_errors_as_reason(job: Job) -> None:
    [there] = job.start(warn_and_leave).result(timeout=SECONDS)
    with pytest.raises(ProcessEndedError, match=r"has ended with exit code 0$"):
        there.request("leave").result(SECONDS)


def own_startpoint(here: JobNode) -> str:
    @here.process.handler
    def rank() -> int:
        return here.rank

    return here.process.startpoint(to="*").text()


def ask_others(here: JobNode, startpoints: list[str]) -> list[int]:
    asked = [here.bind(text).request("rank") for text in startpoints]
    return [reply.result(SECONDS) for reply in asked]


def test_processes_of_another_group_are_called_by_their_startpoints(job: Job) -> None:
    first = job.start(own_startpoint, count=2)
    told = first.values(timeout=SECONDS)
    assert job.start(ask_others, arguments=[told]).values(timeout=SECONDS) == [[0, 1]]
    # As processes, they come as startpoints of that kind.
    processes = first.result(timeout=SECONDS)
    assert job.start(ask_others, arguments=[processes]).values(timeout=SECONDS) == [[0, 1]]
    silent = job.start(["sh", "-c", "exit 0"]).result(timeout=SECONDS)
    with pytest.raises((TypeError, pickle.PicklingError), match="one that has joined the job"):
        job.start(ask_others, arguments=[silent])


def test_processes_of_a_job_that_nobody_holds_say_so() -> None:
    [process] = Job().start(wait_for_nobody).result(SECONDS)
    gc.collect()
    with pytest.raises(ProcessEndedError, match="with its job, as nothing held that: keep the"):
        process.request("norm")
    # What is closed is held by who closes it.
    held = Job()
    [process] = held.start(wait_for_nobody).result(SECONDS)
    held.close()
    with pytest.raises(ProcessEndedError) as raised:
        process.request("norm")
    assert "nothing held" not in str(raised.value)


def nothing(here: JobNode) -> str:
    here.ready()
    with pytest.raises(RefusedError) as raised:
        here.peers[0].request("norm").result(SECONDS)
    return str(raised.value)


def test_a_process_without_handlers_is_told_so(job: Job) -> None:
    [told] = job.start(nothing).values(timeout=SECONDS)
    assert "the endpoint has no handlers yet" in told


def die(here: JobNode) -> None:
    @here.process.handler
    def last() -> None:
        os._exit(7)


def test_what_is_asked_of_a_process_that_dies_says_so(job: Job) -> None:
    [process] = job.start(die).result(timeout=SECONDS)
    with pytest.raises(ProcessEndedError, match="has ended with exit code 7") as caught:
        process.request("last").result(SECONDS)
    assert caught.value.exit_code == 7
    with pytest.raises(ProcessEndedError, match="has ended with exit code 7"):
        process.request("last")


def wait_in_a_handler(here: JobNode) -> None:
    has_come = threading.Event()

    @here.process.handler
    def come() -> None:
        has_come.set()

    @here.process.handler
    def waited() -> bool:
        return has_come.wait(SECONDS)

    here.peers[1 - here.rank].post("come")


def test_handlers_can_wait_for_each_other_on_several_threads(job: Job) -> None:
    pair = job.start(wait_in_a_handler, count=2, threads=2).result(timeout=SECONDS)
    assert [one.request("waited").result(SECONDS) for one in pair] == [True, True]


def test_a_program_joins_by_itself(job: Job) -> None:
    program = textwrap.dedent(
        """
        from exoskel import links
        here = links.init()
        assert links.init() is here
        @here.process.handler
        def rank():
            return here.rank
        here.ready()
        here.wait()
        """
    )
    ranks = job.start([sys.executable, "-c", program], count=2).result(timeout=SECONDS)
    assert [rank.request("rank").result() for rank in ranks] == [0, 1]


def test_a_program_that_never_joins_is_there_when_it_has_ended_well(job: Job) -> None:
    [rank] = job.start(["true"]).result(timeout=SECONDS)
    assert rank.wait() == 0
    with pytest.raises(ProcessEndedError, match="has ended with exit code 0"):
        rank.request("anything")


def test_what_cannot_be_started_is_said(job: Job) -> None:
    for words, code, text in (
        (["/there/is/no/such"], 127, "can't execute /there/is/no/such: No such file"),
        (["/etc/passwd"], 126, "can't execute /etc/passwd: Permission denied"),
    ):
        started = job.start(words)
        assert started.wait(SECONDS) == [code]
        with pytest.raises(ProcessEndedError, match=text):
            started.result(SECONDS)
    assert job.start(["true"], cwd="/no/folder").wait(SECONDS) == [126]
    assert "can't enter /no/folder" in job.summary().processes[-1].stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_processes_are_ended_by_signals(job: Job, number: signal.Signals) -> None:
    started = job.start(["sleep", "600"], count=2)
    started.send_signal(number)
    assert started.wait(SECONDS) == [-number, -number]
    with pytest.raises(ProcessEndedError, match=f"was ended by {number.name}"):
        started.result(SECONDS)


def test_nothing_is_left_of_a_job() -> None:
    with Job() as job:
        ranks = job.start(add_norm, count=2).result(timeout=SECONDS)
        sleeping = job.start(["sh", "-c", "sleep 600 & sleep 600"], count=2)
        [agent] = children(os.getpid())
        [zygote] = children(agent)
        # The sleep of each shell, and its own.
        assert eventually(lambda: sum(len(children(one)) for one in children(zygote)) == 4)
        assert len(children(zygote)) == 4
        running = [process for one in children(zygote) for process in (one, *children(one))]
    assert all(gone(process) for process in (agent, zygote, *running))
    assert [rank.wait() for rank in ranks] == [0, 0]
    assert sleeping.wait(0) == [-signal.SIGTERM] * 2
    with pytest.raises(ProcessEndedError):
        ranks[0].request("norm")
    with pytest.raises(LinkError, match="this job is over"):
        job.start(add_norm)


def processes_of(agent: int) -> list[int]:
    """List what an agent has started, and what that has started."""
    found = children(agent)
    for process in found:
        found += children(process)
    return found


def test_an_agent_that_is_killed_takes_its_processes_with_it() -> None:
    with Job() as job:
        [there] = job.start(add_norm).result(timeout=SECONDS)
        pending = job.start(["sh", "-c", "sleep 600 & sleep 600"])
        [agent] = children(os.getpid())
        assert eventually(lambda: len(processes_of(agent)) == 5)
        running = processes_of(agent)
        os.kill(agent, signal.SIGKILL)
        with pytest.raises(ProcessEndedError, match="lost with what starts the processes"):
            pending.result(timeout=SECONDS)
        with pytest.raises(ProcessEndedError, match="lost with what starts the processes"):
            there.wait(timeout=SECONDS)
        assert eventually(lambda: all(gone(process) for process in running))
        with pytest.raises(ProcessEndedError, match="has ended"):
            job.start(add_norm)


def test_a_zygote_that_is_killed_takes_its_processes_with_it() -> None:
    with Job() as job:
        started = job.start(["sh", "-c", "sleep 600 & sleep 600"], count=2)
        [agent] = children(os.getpid())
        [zygote] = children(agent)
        assert eventually(lambda: len(processes_of(zygote)) == 6)
        running = processes_of(agent)
        os.kill(zygote, signal.SIGKILL)
        with pytest.raises(ProcessEndedError, match="the process that starts processes was ended"):
            started.result(timeout=SECONDS)
        assert eventually(lambda: all(gone(process) for process in running))


def test_nothing_is_left_of_a_creator_that_is_killed(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import exoskel
        job = exoskel.Job()
        job.start(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600"], count=2)
        job.start(["sleep", "600"]).result()
        """
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as creator:
        assert eventually(lambda: len(processes_of(creator.pid)) == 9)
        running = processes_of(creator.pid)
        creator.kill()
        assert creator.stderr is not None
        # All that has it has ended.
        assert creator.stderr.read() == ""
    assert eventually(lambda: all(gone(process) for process in running))
    assert not list(tmp_path.iterdir())


def test_a_process_of_another_job_is_nobody_here() -> None:
    with Job() as one, Job() as other:
        [mine] = one.start(add_norm).result(timeout=SECONDS)
        [theirs] = other.start(add_norm).result(timeout=SECONDS)
        startpoint = one._state._records[mine.number].startpoint
        node = other._state._node
        assert node is not None
        assert startpoint is not None
        with pytest.raises(LinkError, match=r"certificate|authority|issuer"):
            node.bind(startpoint).request("norm").result(SECONDS)
        assert theirs.request("norm").result(SECONDS) == 0


def test_bad_input_is_refused(job: Job) -> None:
    for count in (0, -1, 1.5, True, 1 << 40):
        with pytest.raises(ValueError, match="whole number from 1"):
            job.start(add_norm, count=count)  # type: ignore[arg-type]
    bad: tuple[object, ...] = ("sleep 1", b"sleep", [], 3)
    for what in bad:
        with pytest.raises(TypeError, match="a function or the words of a program"):
            job.start(what)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="arguments beside a program"):
        job.start(["true"], arguments=[1])
    with pytest.raises(TimeoutError, match=r"1 of 1 processes are not there within 0\.1 seconds"):
        job.start(["sleep", "600"]).result(timeout=0.1)


def test_who_was_started_by_no_job_is_told_so() -> None:
    with pytest.raises(LinkError, match="no job has started this process"):
        links.init()


def test_a_job_begins_without_hosts_that_cannot_be_reached(
    ssh: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    launch = Ssh(["mute", "down", "lab1"], python=sys.executable, command=ssh)
    with Job(launch, min=1, timeout=20.0) as job:
        ranks = job.start(add_norm, count=2, cwd="/tmp").result(timeout=SECONDS)
        assert [rank.host for rank in ranks] == ["lab1", "lab1"]
    assert "down has ended before it was there" in caplog.text
    assert (
        "mute is not there in time, exit code -9: it has said nothing; the job goes on"
        in caplog.text
    )
    with pytest.raises(ProcessEndedError, match="down has ended"):
        Job(launch, min=2, timeout=3.0)
    with pytest.raises(TimeoutError, match="the agent of mute is not there in time"):
        Job(Ssh(["mute"], python=sys.executable, command=ssh), timeout=0.5)
    with pytest.raises(ValueError, match="got min=0, expected a whole number from 1"):
        Job(launch, min=0)


SSH = """#!/bin/sh
# Each host is a shell of this machine; "down" is one that doesn't answer.
if [ "$1" = down ]; then
    echo "ssh: connect to host down port 22: Connection refused" >&2
    exit 255
elif [ "$1" = mute ]; then
    exec sleep 600
elif [ "$1" = chatty ]; then
    echo "welcome"
fi
cd / && exec sh -c "$2"
"""


@pytest.fixture
def ssh(tmp_path: Path) -> list[str]:
    place = tmp_path / "ssh"
    place.write_text(SSH)
    place.chmod(0o700)
    return [str(place)]


def test_processes_on_several_hosts_talk_over_the_network(ssh: list[str]) -> None:
    launch = Ssh(["lab1", "me@lab2.example.org"], python=sys.executable, command=ssh)
    with Job(launch) as job:
        ranks = job.start(ring, count=4, cwd="/tmp").result(timeout=SECONDS)
        assert [rank.host for rank in ranks] == [
            "lab1",
            "lab1",
            "lab2.example.org",
            "lab2.example.org",
        ]
        told = job.start(add_norm, count=2).result(timeout=SECONDS)
        names = [one.request("whereabouts").result()[2].partition("#")[0] for one in told]
        assert names == ["lab1", "lab2.example.org"]


def test_processes_of_a_host_that_is_cut_off_are_lost(tmp_path: Path) -> None:
    # An ssh of two processes: that which is killed, and the host's shell, which sees the end of its input.
    place = tmp_path / "ssh"
    place.write_text(f"#!{sys.executable}\n{CUT_OFF}")
    place.chmod(0o700)
    launch = Ssh(["lab1", "lab2"], python=sys.executable, command=[str(place)])
    with Job(launch) as job:
        started = job.start(add_norm, count=2)
        started.result(timeout=SECONDS)
        ends = [one for one in children(os.getpid()) if b"lab2" in words_of(one)]
        assert len(ends) == 1
        os.kill(ends[0], signal.SIGKILL)
        with pytest.raises(ProcessEndedError, match="no exit code: it was lost with"):
            started.wait(timeout=SECONDS, check=True)


CUT_OFF = """
import os, subprocess, sys, threading
own = subprocess.Popen(
    ["sh", "-c", sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
)
def copy(source, sink):
    while part := os.read(source, 65536):
        os.write(sink, part)
    os.close(sink)
threading.Thread(target=copy, args=[own.stdout.fileno(), 1], daemon=True).start()
copy(0, own.stdin.fileno())
own.wait()
"""


def words_of(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def test_hosts_that_cannot_be_reached_are_named(ssh: list[str]) -> None:
    def launched(host: str, python: str = sys.executable) -> Job:
        return Job(Ssh(["lab1", host], python=python, command=ssh))

    refused = r"down has ended before it was there, exit code 255: ssh: connect to host down port 22: Connection refused"
    with pytest.raises(ProcessEndedError, match=refused) as caught:
        launched("down")
    assert caught.value.host == "down"
    with pytest.raises(
        ProcessEndedError,
        match=r"got .*welcome.* from chatty, expected the first words of an agent",
    ):
        launched("chatty")
    with pytest.raises(
        ProcessEndedError, match=r"has ended before it was there, exit code 127: .*not found"
    ):
        launched("lab2", python="/no/such/python")
    with pytest.raises(ProcessEndedError, match=r"can't start /no/such/ssh for lab1: No such file"):
        Job(Ssh(["lab1"], command=["/no/such/ssh"]))
    bad: tuple[Any, ...] = ("lab1", [])
    for hosts in bad:
        with pytest.raises(TypeError, match="a list of names"):
            Ssh(hosts)
    with pytest.raises(ValueError, match="a name as ssh takes it"):
        Ssh(["-oProxyCommand=sh"])


def test_a_traceback_begins_at_the_function_of_the_user(job: Job) -> None:
    def divide(here: JobNode) -> float:
        return 1 / here.rank

    started = job.start(divide)
    assert started.wait(SECONDS) == [1]
    lines = job.summary().processes[0].stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in divide" in lines[1]
    assert lines[-1] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("arguments", ["abc", 11, {"n": 11}])
def test_arguments_are_a_list(job: Job, arguments: Any) -> None:
    with pytest.raises(TypeError, match=r"got arguments=.*, expected a list"):
        job.start(add_norm, arguments=arguments)


def test_a_start_that_is_too_long_ends_no_other_process(job: Job) -> None:
    asleep = job.start(["sleep", "600"])
    started = job.start(["true"], env={"LONG": "x" * 1_500_000})
    with pytest.raises(ProcessEndedError, match="Argument list too long"):
        started.result(SECONDS)
    assert asleep[0].done() is False
    assert job.start(["true"]).wait(SECONDS) == [0]


@pytest.mark.parametrize("sandbox", [None, Sandbox(memory="4 GiB")])
def test_a_program_begins_as_a_shell_would_have_it_begin(
    sandbox: Sandbox | None, capfd: pytest.CaptureFixture[str]
) -> None:
    with Job() as job:
        for words in (["grep", "^Sig", "/proc/self/status"], ["ls", "/proc/self/fd"]):
            assert job.start(words, sandbox=sandbox).wait(SECONDS) == [0]
    told = capfd.readouterr().out
    # Python ignores two signals; what it executes would go on to. What this process was told to ignore stays so.
    expected = subprocess.run(
        ["grep", "^Sig", "/proc/self/status"],
        check=True,
        capture_output=True,
        text=True,
        restore_signals=True,
    ).stdout
    signals, of_shell = (
        dict(re.findall(r"^(\w+):\s+(.*)$", lines, re.M)) for lines in (told, expected)
    )
    for kind in ("SigIgn", "SigBlk", "SigCgt"):
        assert signals[kind] == of_shell[kind], kind
    # Its input, output and errors, the socket to its agent; in a sandbox that by which it is connected, and its listener; the folder that is listed.
    descriptors = [int(line) for line in told.splitlines() if line.isdigit()]
    assert descriptors == list(range(5 if sandbox is None else 7))
