"""``exoskel couple``: programs that it starts, what it prints, and what becomes of the others when one fails."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.processes import eventually, gone

from exoskel.cli.couple import _Quiet

# In place of mpiexec: so many processes of a script, each with its rank. It passes whole lines of their errors on: a
# traceback is written in pieces, and those of two processes would mix within a line.
STARTER = """
    import os, subprocess, sys, threading

    def pass_on(errors):
        for line in errors:
            os.write(2, line)

    size = int(sys.argv[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv[2:]],
            env={**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": str(size)},
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]
    threads = [threading.Thread(target=pass_on, args=(rank.stderr,)) for rank in ranks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(max(rank.wait() for rank in ranks))
"""
OCEAN = """
    import numpy as np
    import exoskel as ex

    with ex.Member("ocean") as ocean:
        sst = ocean.array("sst", ex.Layout((64, 32), "f8", ("block", "block")))
        heat = ocean.array("heat", ex.Layout((8, 8), "f8", ("block", "*")))
        for step in range(5):
            with sst.write() as local:
                local[...] = step
            with heat.read() as local:
                assert (local == 2 * step).all()
    if ocean.rank == 0:
        print("ocean is \\x1b[31mdone")
"""
ATMOSPHERE = """
    import exoskel as ex

    with ex.Member("atmosphere") as atmosphere:
        sst = atmosphere.array("sst", ex.Layout((32, 16), "f8", ("*", "cyclic")))
        heat = atmosphere.array("heat", ex.Layout((8, 8), "f8", ("*", "block")))
        for _ in range(5):
            with sst.read() as local:
                step = local[0, 0]
                assert (local == step).all()
            with heat.write() as local:
                local[...] = 2 * step
"""
CONNECTIONS = """
    [[connection]]
    from = "ocean.sst"
    to = "atmosphere.sst"
    select = "[::2, ::2]"

    [[connection]]
    from = "atmosphere.heat"
    to = "ocean.heat"
"""


def write(folder: Path, **programs: str) -> Path:
    """Write scripts, and a coupling that starts ocean four times and atmosphere twice."""
    (folder / "start.py").write_text(textwrap.dedent(STARTER))
    lines = []
    for name, script in programs.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(script))
        size = {"ocean": 4, "atmosphere": 2}[name]
        command = f"{sys.executable} {folder}/start.py {size} {folder}/{name}.py"
        lines += [f"[program.{name}]", f'command = "{command}"']
    file = folder / "climate.toml"
    file.write_text("\n".join(lines) + textwrap.dedent(CONNECTIONS))
    return file


def couple(file: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, "-m", "exoskel", "couple", str(file), *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)


def quick_to_complain(file: Path) -> "subprocess.Popen[str]":
    """Start `couple` so that it soon says who waits for what."""
    source = "import sys; from exoskel.cli import couple, main; couple._QUIET_SECONDS = 0.1; sys.exit(main())"
    words = [sys.executable, "-c", source, "couple", str(file)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def says(running: "subprocess.Popen[str]", pattern: str) -> bool:
    """Read what it says on the standard error until a line is as expected; say whether one came."""
    assert running.stderr is not None
    given_up = threading.Timer(60, running.terminate)
    given_up.start()
    try:
        lines = iter(running.stderr.readline, "")
        return any(re.fullmatch(pattern, line) for line in lines)
    finally:
        given_up.cancel()
        given_up.join()


def lone(folder: Path, command: str, **scripts: str) -> Path:
    """Write scripts, and a coupling of one program without connections; `{name}` in its command is a script's file."""
    places = {}
    for name, script in scripts.items():
        places[name] = folder / f"{name}.py"
        places[name].write_text(textwrap.dedent(script))
    file = folder / "lone.toml"
    command = command.format(python=sys.executable, **places)
    file.write_text(f"[program.ocean]\ncommand = '{command}'\n")
    return file


def test_two_programs_exchange_arrays_and_a_table_says_so(tmp_path: Path) -> None:
    done = couple(write(tmp_path, ocean=OCEAN, atmosphere=ATMOSPHERE))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    # What drives a terminal is escaped.
    assert lines[0] == r"ocean | ocean is \x1b[31mdone"
    assert lines[1].split() == ["connection", "versions", "moved", "copied", "at", "method"]
    sst, heat = (re.split(r"  +", line) for line in lines[2:])
    assert (sst[:3], sst[-1]) == (
        ["ocean.sst to atmosphere.sst", "5", "20.0 KiB"],
        "shared memory",
    )
    assert heat[:3] == ["atmosphere.heat to ocean.heat", "5", "2.5 KiB"]


def test_machines_get_one_object(tmp_path: Path) -> None:
    done = couple(write(tmp_path, ocean=OCEAN, atmosphere=ATMOSPHERE), "--json")
    answer = json.loads(done.stdout)
    assert answer["programs"] == {
        "atmosphere": {"exit_code": 0, "processes": 2},
        "ocean": {"exit_code": 0, "processes": 4},
    }
    sst = answer["connections"][0]
    assert (sst["state"], sst["versions"], sst["bytes"]) == ("ready", 5, 5 * 32 * 16 * 8)
    assert (answer["first_lost"], answer["failures"]) == (None, [])
    assert done.stderr.startswith("ocean | ")


def test_the_program_that_failed_first_is_named(tmp_path: Path) -> None:
    failing = OCEAN.replace("local[...] = step", "local[...] = step / (2 - step)")
    failing = failing.replace("for step", "np.seterr(divide='raise')\n        for step")
    failing = failing.replace("step / (2", "np.float64(step) / (2")
    done = couple(write(tmp_path, ocean=failing, atmosphere=ATMOSPHERE))
    assert done.returncode == 1
    assert re.search(r"^lost first: rank \d of ocean \(FloatingPointError", done.stdout, re.M)
    assert "ocean ended with exit code 1" in done.stdout
    assert re.search(r"atmosphere \| .*MemberLostError: rank \d of ocean was lost", done.stdout)


def test_a_loss_fails_the_run_although_its_program_ends_with_0(tmp_path: Path) -> None:
    """Aim: table, text, exit code and the answer for machines agree, also where nobody else has suffered from the loss."""
    caught = """
        import contextlib
        import exoskel as ex

        with contextlib.suppress(ValueError), ex.Member("ocean") as ocean:
            sst = ocean.array("sst", ex.Layout((64, 32), "f8", ("block", "block")))
            with sst.write() as local:
                local[...] = 1
            if ocean.rank == 0:
                raise ValueError("caught")
    """
    content = ATMOSPHERE.replace("range(5)", "range(1)").partition("with heat.write")[0]
    content = re.sub("heat = .*", "", content)
    file = write(tmp_path, ocean=caught, atmosphere=content)
    file.write_text(file.read_text().rpartition("[[connection]]")[0])
    lost = "lost first: rank 0 of ocean (ValueError: caught)"
    done = couple(file)
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == lost
    assert re.search(r"^ocean\.sst to atmosphere\.sst +1 ", done.stdout, re.M)
    done = couple(file, "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["failures"]) == (1, [lost])
    assert {name: one["exit_code"] for name, one in answer["programs"].items()} == {
        "ocean": 0,
        "atmosphere": 0,
    }


WRITER = """
    import exoskel as ex

    with ex.Member("{0}") as member:
        given = member.array("given", ex.Layout((8, 8), "f8", ("block", "*")))
        member.array("taken", ex.Layout((8, 8), "f8", ("block", "*")))
        for _ in range({1}):
            with given.write() as local:
                local[...] = 1
"""


def test_a_connection_that_has_moved_nothing_says_why(tmp_path: Path) -> None:
    """Aim: programs that end in good order, and of which nobody reads what the other one writes, are not taken for a coupling that works."""
    ocean, atmosphere = WRITER.format("ocean", 1), WRITER.format("atmosphere", 0)
    file = write(tmp_path, ocean=ocean, atmosphere=atmosphere)
    commands = file.read_text().partition("[[connection]]")[0]
    ends = [("ocean", "atmosphere"), ("atmosphere", "ocean")]
    file.write_text(
        commands
        + "".join(f'[[connection]]\nfrom = "{a}.given"\nto = "{b}.taken"\n' for a, b in ends)
    )
    done = couple(file)
    assert (done.returncode, done.stderr) == (0, "")
    unmoved = "ocean exported version 1, atmosphere never read it"
    assert done.stdout.splitlines()[1].endswith(f"  -          nothing moved: {unmoved}")
    assert done.stdout.splitlines()[2].endswith("nothing moved: atmosphere exported no version")
    answer = json.loads(couple(file, "--json").stdout)
    assert [one["unmoved"] for one in answer["connections"]] == [
        unmoved,
        "atmosphere exported no version",
    ]
    assert answer["failures"] == []


def test_who_waits_to_write_what_nobody_reads_is_said(tmp_path: Path) -> None:
    """Method: both programs write twice and never read, so each waits for the other one."""
    programs = {name: WRITER.format(name, 2) for name in ("ocean", "atmosphere")}
    file = write(tmp_path, **programs)
    commands = file.read_text().partition("[[connection]]")[0]
    ends = [("ocean", "atmosphere"), ("atmosphere", "ocean")]
    file.write_text(
        commands
        + "".join(f'[[connection]]\nfrom = "{a}.given"\nto = "{b}.taken"\n' for a, b in ends)
    )
    with quick_to_complain(file) as running:
        waits = "ranks 0, 1 of atmosphere wait until version 1 of atmosphere.given is taken into ocean.taken: rank 0 of ocean has taken none\n"
        assert says(running, re.escape(waits))
        running.send_signal(signal.SIGINT)
        error = running.communicate(timeout=120)[1]
    assert "nothing moved: ocean exported version 1, atmosphere never read it" in error


def test_a_program_without_a_member_is_not_waited_for(tmp_path: Path) -> None:
    done = couple(write(tmp_path, ocean="print('no member here')", atmosphere=ATMOSPHERE))
    assert done.returncode == 1
    said = "ocean has ended without a Member, so nobody has said what ocean.sst is"
    assert f"CouplingError: ocean.sst to atmosphere.sst: {said}" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ctrl_c_and_its_like_end_all_processes(tmp_path: Path, number: signal.Signals) -> None:
    waiting = ATMOSPHERE.replace(
        "for _ in range(5)",
        "import os\n        os.write(1, f'{os.getpid()}\\n'.encode())\n        while True",
    )
    idle = "import exoskel as ex, time\nkept = ex.Member('ocean')\ntime.sleep(600)"
    with quick_to_complain(write(tmp_path, ocean=idle, atmosphere=waiting)) as running:
        assert running.stdout is not None
        ranks = [int(running.stdout.readline().split(" | ")[1]) for _ in range(2)]
        # All are there, and wait, before it is asked who waits for what.
        missing = "ranks 0, 1, 2, 3 of ocean have not described ocean.sst"
        waits = f"ranks 0, 1 of atmosphere wait for version 1 of ocean.sst: {missing}\n"
        assert says(running, re.escape(waits))
        running.send_signal(number)
        error = running.communicate(timeout=120)[1]
        assert ("interrupted" if number == signal.SIGINT else f"ended by {number.name}") in error
        # Who waits for what.
        never = rf"ocean\.sst to atmosphere\.sst +0 +0 B +- +never ready: {missing}$"
        assert re.search(never, error, re.M)
        assert waits in error
        assert running.returncode == 130
    assert eventually(lambda: all(gone(rank) for rank in ranks))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[program.a]\n", r"got no command for a, expected command = in \[program\.a\]"),
        ("[program.a]\ncommand = 'nothing-here-1'\n", "can't start a: .*nothing-here-1"),
        (
            "[program.a]\ncommand = 'python-nothing-1 a.py'\n",
            r"can't start a: there is no program 'python-nothing-1'\. Expected one that the PATH has, or a whole path \(this Python is /",
        ),
        ("[program.a]\ncommand = ''\n", "can't start a: got no command"),
        ("[program.a]\nspeed = 1\n", r"climate\.toml: .*\n.*\n.*\n.*\nunknown field `speed`"),
        ("", "climate.toml: got no program"),
        ("\udcff", r"climate\.toml: got 'utf-8' codec .*, expected text in UTF-8"),
    ],
)
def test_files_that_cannot_run_are_said(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "climate.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    done = couple(file)
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    assert os.listdir(tmp_path) == ["climate.toml"]


def test_a_second_ctrl_c_leaves_nobody(tmp_path: Path) -> None:
    """Aim: whoever doesn't want to wait for a program that ignores its end does not leave it behind."""
    stubborn = """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"told\\n"))
        os.write(1, f"{os.getpid()}\\n".encode())
        while True:
            signal.pause()
    """
    words = [sys.executable, "-m", "exoskel", "couple"]
    words.append(str(lone(tmp_path, "{python} {stubborn}", stubborn=stubborn)))
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with running:
        assert running.stdout is not None
        process = int(running.stdout.readline().split(" | ")[1])
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "ocean | told\n"
        running.send_signal(signal.SIGINT)
        error = running.communicate(timeout=120)[1]
    assert "interrupted" in error
    assert running.returncode == 130
    assert eventually(lambda: gone(process))


def test_what_a_program_leaves_behind_with_its_output_is_not_waited_for(tmp_path: Path) -> None:
    daemon = """
        import subprocess, sys
        left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        print(left.pid, flush=True)
    """
    done = couple(lone(tmp_path, "{python} {daemon}", daemon=daemon))
    left = int(done.stdout.splitlines()[0].removeprefix("ocean | "))
    try:
        assert (done.returncode, done.stderr) == (0, "")
        assert not gone(left)
    finally:
        os.kill(left, signal.SIGKILL)
    assert eventually(lambda: gone(left))


def test_an_outer_mpi_job_is_none_of_the_programs_business(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outer = """
        OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=5 OMPI_COMM_WORLD_LOCAL_RANK=2 PMI_RANK=2 PMI_SIZE=5 PMI_FD=9 SLURM_PROCID=2
        SLURM_STEP_NUM_TASKS=5 PMIX_RANK=2 PMIX_NAMESPACE=1 OMPI_MCA_ess=^singleton OMPI_MCA_orte_hnp_uri=1 MPI_LOCALRANKID=2
    """
    for name in [
        name for name in os.environ if name.startswith(("OMPI_", "PMI", "SLURM_", "MPI_", "I_MPI_"))
    ]:
        monkeypatch.delenv(name)
    kept = "OMPI_MCA_btl=self OMPI_ALLOW_RUN_AS_ROOT=1 PMIX_MCA_gds=hash SLURM_JOB_ID=7 I_MPI_PIN=1"
    for setting in [*outer.split(), *kept.split()]:
        monkeypatch.setenv(*setting.split("="))
    shown = """
        import os
        import exoskel as ex
        with ex.Member("ocean") as ocean:
            print(ocean.rank, ocean.size)
        words = ("OMPI_", "PMI", "SLURM_", "MPI_", "I_MPI_")
        print(*sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(words)))
    """
    done = couple(lone(tmp_path, "{python} {shown}", shown=shown))
    lines = done.stdout.splitlines()
    assert lines[:2] == ["ocean | 0 1", f"ocean | {' '.join(sorted(kept.split()))}"]
    # Where nobody is inside of Open MPI's processes, its settings are the user's.
    monkeypatch.delenv("OMPI_COMM_WORLD_RANK")
    done = couple(lone(tmp_path, "{python} {shown}", shown=shown))
    assert "OMPI_MCA_ess=^singleton" in done.stdout


@pytest.mark.parametrize(
    ("version", "printed", "expected"),
    [
        ("HYDRA build details:", "[1] hot", "ocean 1 | hot"),
        ("HYDRA build details:", "[1] very [1] hot[1] ", "ocean 1 | very [1] hot"),
        (
            "mpiexec (Open MPI) 5.0.3",
            "[1,1]<stderr>: very [1,1]<stderr>: hot",
            "ocean 1 | very hot",
        ),
        ("mpiexec.openmpi (OpenRTE) 4.1.4", "[7,1]<stdout>: hot", "ocean 1 |  hot"),
        ("slurm 22.05", "01: hot", "ocean 01 | hot"),
        ("another 1.0", "[1] hot", "ocean | [1] hot"),
    ],
)
def test_lines_have_the_rank_that_the_starter_says(
    tmp_path: Path, version: str, printed: str, expected: str
) -> None:
    options = {"-prepend-rank", "--tag-output", "--label"}
    starter = tmp_path / "mpiexec"
    starter.write_text(
        f"""#!{sys.executable}
import sys
if sys.argv[1] == "--version":
    print({version!r})
else:
    print({printed!r})
    print("without", *sys.argv[1:])
"""
    )
    starter.chmod(0o700)
    done = couple(lone(tmp_path, f"{starter} -n 2 model"))
    first, second = done.stdout.splitlines()[:2]
    assert first == expected
    words = set(second.removeprefix("ocean | without ").split())
    assert words - options == {"-n", "2", "model"}
    assert len(words & options) == (version != "another 1.0")


def test_a_long_folder_for_temporary_files_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    shown = "import exoskel as ex\nwith ex.Member('ocean') as ocean: print(ocean)"
    done = couple(lone(tmp_path, "{python} {shown}", shown=shown))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ocean | <exoskel.Member ocean, rank 0 of 1>\n")
    assert os.listdir(long) == []


def test_the_reason_of_a_refusal_is_said_at_the_end_and_to_the_others(tmp_path: Path) -> None:
    wrong = OCEAN.replace("(64, 32)", "(64, 32 + ocean.rank // 3)")
    done = couple(write(tmp_path, ocean=wrong, atmosphere=ATMOSPHERE))
    assert done.returncode == 1
    reason = r"rank \d describes ocean\.sst as .*: all processes of a program give the same layout"
    lost = rf"^lost first: rank \d of ocean \(it was refused: {reason}\)$"
    assert re.search(lost, done.stdout, re.M)
    assert re.search(rf"^atmosphere \| .*Error: .*refused.*{reason}", done.stdout, re.M)
    # Of the same process it is said once. Whose layout came first is anybody's: the others may have been refused as well.
    first = re.search(rf"was refused: ({reason})\)$", done.stdout, re.M)
    assert first
    assert f"refused: a process of ocean ({first[1]})" not in done.stdout
    stranger = "import exoskel as ex\nex.Member('sea')"
    done = couple(lone(tmp_path, "{python} {stranger}", stranger=stranger))
    said = (
        'refused: a process of sea (got the program "sea", expected one of the coupling\'s: ocean)'
    )
    assert said in done.stdout.splitlines()


def test_processes_that_never_attach_are_named_after_a_time(tmp_path: Path) -> None:
    absent = "import exoskel as ex, os, time\nif os.environ['PMI_RANK'] in '13': time.sleep(1000)\n"
    absent += "with ex.Member('ocean') as ocean:\n    time.sleep(1000)"
    file = write(tmp_path, ocean=absent, atmosphere=ATMOSPHERE)
    source = "import sys; from exoskel.cli import couple, main; couple._GRACE_SECONDS = 0.1; sys.exit(main())"
    words = [sys.executable, "-c", source, "couple", str(file), "--wait", "WAIT"]
    # On a slow machine it is over before all others are there: then they are named too.
    done = subprocess.run(
        [word.replace("WAIT", "0.5") for word in words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    absent = r"(no process|ranks? [\d, ]+) of (ocean|atmosphere) (has|have not|has not) attached"
    assert re.search(rf"CouplingError: .*{absent} within 0\.5 s", done.stdout)
    assert "--wait" in couple(file, "--help").stdout


def test_who_waits_is_said_when_nothing_moves(tmp_path: Path) -> None:
    idle = "import exoskel as ex, time\nkept = ex.Member('ocean')\ntime.sleep(600)"
    with quick_to_complain(write(tmp_path, ocean=idle, atmosphere=ATMOSPHERE)) as running:
        assert says(running, r"nothing has moved for 0\.1 s:\n")
        waits = r"(rank \d|ranks 0, 1) of atmosphere waits? for version 1 of ocean\.sst: .*\n"
        assert says(running, waits)
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=120)
    assert running.returncode == 130


def test_how_long_nothing_has_moved_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    """Aim: it is said when that time is over, not at the second look, and begins anew with each line. Method: a clock that the test sets."""
    now = 0.0
    seen: dict[str, Any] = {"connections": [{"versions": 0, "missing": None}], "waits": []}
    programs: Any = SimpleNamespace(lines=0)
    quiet = _Quiet(lambda: seen, programs, lambda: now)

    def said_after(seconds: float) -> str:
        nonlocal now
        end = now + seconds
        while now < end:
            now += 0.05
            quiet()
        return capsys.readouterr().err

    assert said_after(25) == ""
    seen = {**seen, "waits": [{"text": "rank 0 of ocean waits"}]}
    assert said_after(9.5) == ""
    assert said_after(1.5) == "nothing has moved for 10 s:\nrank 0 of ocean waits\n"
    programs.lines += 1
    assert said_after(19.5) == ""
    assert said_after(2) == "nothing has moved for 20 s:\nrank 0 of ocean waits\n"
    # Before anybody can wait, it is said who has to come.
    missing = "no process of ocean has attached"
    seen = {"connections": [{"versions": 0, "missing": missing}] * 2, "waits": []}
    assert said_after(43) == f"nothing has moved for 40 s:\n{missing}\n"
