"""``exoskel couple``: programs that it starts, what it prints, and what becomes of the others when one fails."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.processes import eventually, gone

# In place of mpiexec: so many processes of a script, each with its rank.
STARTER = """
    import os, subprocess, sys
    size = int(sys.argv[1])
    ranks = [
        subprocess.Popen(
            [sys.executable, *sys.argv[2:]], env={**os.environ, "PMI_RANK": str(rank), "PMI_SIZE": str(size)}
        )
        for rank in range(size)
    ]
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
    assert answer["first_lost"] is None
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
    words = [
        sys.executable,
        "-m",
        "exoskel",
        "couple",
        str(write(tmp_path, ocean=idle, atmosphere=waiting)),
    ]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with running:
        assert running.stdout is not None
        ranks = [int(running.stdout.readline().split(" | ")[1]) for _ in range(2)]
        running.send_signal(number)
        error = running.communicate(timeout=120)[1]
        assert ("interrupted" if number == signal.SIGINT else f"ended by {number.name}") in error
        # Who waits for what.
        assert re.search(r"ocean\.sst to atmosphere\.sst +0 +0 B +- +never ready", error)
        assert running.returncode == 130
    assert eventually(lambda: all(gone(rank) for rank in ranks))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[program.a]\n", r"got no command for a, expected command = in \[program\.a\]"),
        ("[program.a]\ncommand = 'nothing-here-1'\n", "can't start a: .*nothing-here-1"),
        ("[program.a]\ncommand = ''\n", "can't start a: got no command"),
        ("[program.a]\nspeed = 1\n", r"climate\.toml: .*\n.*\n.*\n.*\nunknown field `speed`"),
        ("", "climate.toml: got no program"),
    ],
)
def test_files_that_cannot_run_are_said(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "climate.toml"
    file.write_text(text)
    done = couple(file)
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    assert os.listdir(tmp_path) == ["climate.toml"]
