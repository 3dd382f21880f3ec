"""``exoskel up``, with a shell in the place of ssh."""

import argparse
import json
import os
import shutil
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.site import Site, free_address

import exoskel as ex
from exoskel.cli import main
from exoskel.cli.up import start_script
from exoskel.hosts import HostAddress

SECRET = b"-----BEGIN PRIVATE KEY-----\nsecret\x00bytes\n"

SSH = """#!/bin/sh
# Each host is a directory beside this script; "down" is one that doesn't answer.
while [ "$1" != -- ]; do shift; done
echo "$*" >> "$(dirname "$0")/commands"
if [ "$2" = down ]; then
    echo "ssh: connect to host down port 22: Connection refused" >&2
    exit 255
elif [ "$2" = locked ]; then
    echo "me@locked: Permission denied (publickey)." >&2
    exit 255
fi
export HOME="$(dirname "$0")/$2"
mkdir -p "$HOME"
exec sh -c "$3"
"""

PYTHON = """#!/bin/sh
# The host's shell says something to everybody.
echo welcome
case "$*" in
    *7604*--status*) echo '{"running": true, "process": 7, "name": "lab1"}'; exit ;;
    *7605*--status*)
        echo "{\\"running\\": true, \\"process\\": 7, \\"name\\": \\"lab1\\", \\"policy\\": \\"$(cat "$HOME/reads")\\"}"; exit ;;
    *--status*) echo '{"running": false}'; exit 1 ;;
esac
echo "$*" > "$HOME/started"
case "$*" in
    *--stop*) echo '{"stopped": true}' ;;
    *7666*) echo '{"error": "can not listen on tcp://0.0.0.0:7666: address already in use"}'; exit 1 ;;
    *) echo '{"listen": "there", "slots": 3, "process": 7, "log": "/the/log"}' ;;
esac
"""

# A Python of a host that shares its home with others, and has a name of its own.
NAMED = """
import os
uname = os.uname
os.uname = lambda: os.uname_result((uname()[0], os.environ["HOST_OF_TEST"], *uname()[2:]))
"""
SHARED_SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
if [ "$2" = 127.0.0.9 ]; then
    echo "ssh: connect to host 127.0.0.9 port 22: Connection refused" >&2
    exit 255
fi
here=$(dirname "$0")
export HOME="$here/home" HOST_OF_TEST="lab${2##*.}" PATH="$here/bin:$PATH"
exec sh -c "$3"
"""
UNAME = """#!/bin/sh
echo "$HOST_OF_TEST"
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make a place with a client, a remote Python, a credential, a policy and hosts."""
    for name, text in (("ssh", SSH), ("python", PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "worker-lab1.pem").write_bytes(SECRET)
    (tmp_path / "worker-node2.example.org.pem").write_bytes(SECRET * 2)
    (tmp_path / "policy.toml").write_text("# a policy\n")
    (tmp_path / "hosts.txt").write_text("lab1:7601\nlab2:7602 node2.example.org\n")
    return tmp_path


def up(site: Path, *arguments: str) -> int:
    fixed = [
        "--ssh",
        f"{site}/ssh -o BatchMode=yes",
        "--python",
        f"{site}/python",
        "--credential",
        f"{site}/worker-{{name}}.pem",
    ]
    return main(["up", str(site / "hosts.txt"), *fixed, *arguments])


def test_each_host_gets_its_credential_and_its_worker(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(site, "--slots", "3", "--policy", str(site / "policy.toml")) == 0
    for host, port, secret in (("lab1", 7601, SECRET), ("lab2", 7602, SECRET * 2)):
        run = site / host / ".exoskel/run"
        credential = run / f"{base_of(port)}.pem"
        assert credential.read_bytes() == secret
        assert stat.S_IMODE(credential.stat().st_mode) == 0o600
        assert stat.S_IMODE(run.stat().st_mode) == 0o700
        assert (run / f"{base_of(port)}.toml").read_text() == "# a policy\n"
        started = (site / host / "started").read_text()
        assert f"-m exoskel worker --json --listen tcp://0.0.0.0:{port} --background" in started
        assert "--slots=3 --credential" in started
        assert f"--policy {run}/{base_of(port)}.toml" in started
    assert b"secret" not in (site / "commands").read_bytes()
    captured = capsys.readouterr()
    assert "[2/2]" in captured.err
    line = ["lab1:7601", "started", "slots", "3,", "process", "7,", "log", "/the/log"]
    assert captured.out.splitlines()[1].split() == line
    assert captured.out.splitlines()[-1] == "2 of 2 run"


def test_ctrl_c_leaves_the_other_hosts_alone(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = site / "cancelled"

    def interrupt(_futures: object) -> None:
        raise KeyboardInterrupt

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            cancelled.touch()
            super().shutdown(wait=wait)

    monkeypatch.setattr("exoskel.cli.up.as_completed", interrupt)
    monkeypatch.setattr("exoskel.cli.up.ThreadPoolExecutor", Pool)
    monkeypatch.setattr("exoskel.cli.up._AT_ONCE_MAX", 1)
    # The host whose turn it is answers only then.
    waits = f'while [ ! -e "{cancelled}" ]; do sleep 0.01; done\n'
    (site / "ssh").write_text(SSH.replace("\n", f"\n{waits}", 1))
    (site / "hosts.txt").write_text("".join(f"lab1:{7610 + number}\n" for number in range(9)))
    assert up(site) == 130
    commands = site / "commands"
    asked = commands.read_text() if commands.exists() else ""
    assert sum(f":{7610 + number}" in asked for number in range(9)) <= 1


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--slots", "0", "got 0, expected 1 to 4096 slots"),
        ("--ssh", "", "got '', expected a command such as 'ssh "),
        ("--ssh", "ssh 'a", "with its quotes closed"),
    ],
)
def test_what_cannot_be_is_said_before_a_host_is_asked(
    option: str, value: str, said: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        up(site, option, value)
    assert said in capsys.readouterr().err
    assert not (site / "commands").exists()


def test_a_line_says_how_its_worker_is_started(site: Path) -> None:
    shutil.copy(site / "python", site / "own")
    line = f"lab1:7601 slots=5 python={site}/own listen=10.0.0.1 dead-after=30\n"
    (site / "hosts.txt").write_text(line)
    assert up(site, "--slots", "3", "--python", "surely-no-python") == 0
    started = (site / "lab1/started").read_text()
    assert "--listen tcp://10.0.0.1:7601 " in started
    assert "--slots=5 --dead-after=30 " in started
    assert "--slots=3" not in started


def test_workers_announce_themselves_if_that_is_asked_for(site: Path) -> None:
    assert up(site) == 0
    assert "--announce" not in (site / "lab1" / "started").read_text()
    (site / "lab1" / "started").unlink()
    assert up(site, "--announce") == 0
    for host in ("lab1", "lab2"):
        assert " --background --announce --credential " in (site / host / "started").read_text()


def test_a_python_may_be_in_the_home_of_its_host(site: Path) -> None:
    place = site / "lab1/my env"
    place.mkdir(parents=True)
    shutil.copy(site / "python", place / "python")
    (site / "lab1/env").symlink_to(place)
    (site / "hosts.txt").write_text("lab1:7601 python=~/env/python\n")
    assert up(site) == 0
    (site / "hosts.txt").write_text("lab1:7601\n")
    assert up(site, "--python", "~/my env/python") == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("lab2 lab2.example.org slots=none", "got slots=none, expected a number from 1 to 4096"),
        ("lab2 sluts=3", "got sluts=3, expected one of python, slots, listen, "),
        ("lab2 slots=3 slots=4", "got slots= twice"),
        ("lab2 listen=udp://a", "expected tcp://host:port"),
        ("lab2 dead-after=soon", "dead-after=soon: "),
        ("lab2 credential=/etc/key.pem", "got credential=/etc/key.pem, expected one of"),
        ("lab2 slots=3 lab2.example.org", "expected host:port NAME"),
        ("lab1 lab9", "got lab1:7601 as lab9, and as lab1 in line 1"),
    ],
)
def test_a_wrong_line_is_named_before_anything_starts(
    line: str, said: str, site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "hosts.txt").write_text(f"lab1\n{line}\n")
    assert up(site) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"exoskel: error: {site}/hosts.txt, line 2: ")
    assert said in error
    assert not (site / "commands").exists()
    with pytest.raises(ValueError, match=r"hosts\.txt, line 2: "):
        ex.Manager(abs, ex.ParDegree(1), workers=site / "hosts.txt")


def test_a_wrong_policy_is_named_before_anything_starts(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "policy.toml").write_text("\n[rule]\n")
    assert up(site, "--policy", str(site / "policy.toml")) == 1
    assert "policy.toml, line 2" in capsys.readouterr().err
    assert not (site / "commands").exists()


def test_a_missing_authority_is_named_before_anything_starts(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["up", str(site / "hosts.txt"), "--ssh", f"{site}/ssh", "--directory"]
    (site / "empty").mkdir()
    for directory in ("nowhere", "empty"):
        assert main([*command, str(site / directory)]) == 1
        assert "exoskel pki init" in capsys.readouterr().err
    assert not (site / "commands").exists()


def test_a_worker_that_runs_under_another_name_is_no_success(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "hosts.txt").write_text("lab1:7604\n10.0.0.2:7604 node2.example.org\n")
    assert up(site, "--json") == 1
    same, other = json.loads(capsys.readouterr().out)["hosts"]
    assert same["state"] == "running"
    assert other["state"] == "failed"
    assert "a worker runs there as lab1, expected node2.example.org" in other["answer"]
    assert not (site / "10.0.0.2/started").exists()


def test_a_worker_that_runs_gets_another_policy(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (site / "hosts.txt").write_text("lab1:7605\n")
    run = site / "lab1/.exoskel/run"
    run.mkdir(parents=True)
    kept = run / f"{base_of(7605)}.toml"
    kept.write_text("# an older policy\n")
    (site / "lab1/reads").write_text(str(kept))

    def answer(code: int) -> str:
        capsys.readouterr()
        assert up(site, "--policy", str(site / "policy.toml"), "--json") == code
        (host,) = json.loads(capsys.readouterr().out)["hosts"]
        assert host["state"] == ("failed" if code else "running")
        return str(host["answer"])

    before = kept.stat().st_ino
    assert answer(0) == "process 7, policy replaced"
    # Another file under the same name: a worker never reads half of one.
    assert kept.stat().st_ino != before
    assert kept.read_text() == "# a policy\n"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert answer(0) == "process 7, the same policy"
    assert [path.name for path in run.iterdir()] == [kept.name]
    # Without one it has nothing to say about it, and what is somebody else's is left alone.
    assert up(site) == 0
    others = site / "lab1/its own.toml"
    others.write_text("# somebody's\n")
    (site / "lab1/reads").write_text(str(others))
    assert "reads a policy that is not of `exoskel up`" in answer(1)
    assert others.read_text() == "# somebody's\n"
    (site / "lab1/reads").write_text("")
    assert "has no policy, and can't get one while it runs" in answer(1)
    assert not (site / "lab1/started").exists()


def test_an_older_credential_that_others_could_read_is_replaced(site: Path) -> None:
    run = site / "lab1/.exoskel/run"
    run.mkdir(parents=True)
    (run / f"{base_of(7601)}.pem").touch(0o644)
    assert up(site) == 0
    assert stat.S_IMODE((run / f"{base_of(7601)}.pem").stat().st_mode) == 0o600


def test_each_host_fails_by_itself(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "hosts.txt").write_text("lab1\ndown node2.example.org\nlab1:7666\nlab3\nlocked\n")
    assert up(site, "--json") == 1
    answers = {entry["host"]: entry for entry in json.loads(capsys.readouterr().out)["hosts"]}
    assert answers["lab1:7601"]["done"]
    assert answers["down:7601"]["answer"] == (
        "ssh: connect to host down port 22: Connection refused"
    )
    assert answers["locked:7601"]["answer"] == (
        "me@locked: Permission denied (publickey). (does `ssh` to it work without a password?)"
    )
    assert (
        answers["lab1:7666"]["answer"]
        == "can not listen on tcp://0.0.0.0:7666: address already in use"
    )
    assert not answers["lab3:7601"]["done"]
    assert "worker-lab3.pem" in answers["lab3:7601"]["answer"]
    assert [answer["state"] for answer in answers.values()] == [
        "started",
        "failed",
        "failed",
        "failed",
        "failed",
    ]


def test_what_a_host_says_drives_no_terminal(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weapons = "\\033[2Jone\\302\\233two\\342\\200\\256three\\b"
    (site / "python").write_text(f"#!/bin/sh\nprintf '{weapons}\\n' >&2\nexit 1\n")
    assert up(site) == 1
    answer = '{"slots": 1, "process": 7, "log": "\\\\u001b[2J\\\\u202ethree"}'
    (site / "python").write_text(f"#!/bin/sh\nprintf '{weapons}\\n{answer}\\n'\n")
    assert up(site) == 0
    captured = capsys.readouterr()
    assert captured.out.count("three") == 4
    for text in captured:
        assert text.replace("\n", "").isprintable()


def test_nothing_is_written_through_a_link(site: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("unharmed")
    runs = site / "lab1/.exoskel/run"
    runs.mkdir(parents=True)
    runs.chmod(0o777)
    for name in (f"{base_of(7601)}.pem.new", f"{base_of(7601)}.pem"):
        (runs / name).symlink_to(victim)
    up(site)
    assert victim.read_text() == "unharmed"
    written = runs / f"{base_of(7601)}.pem"
    assert not written.is_symlink()
    assert written.read_bytes() != b"unharmed"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(runs.stat().st_mode) == 0o700


def test_stop(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert up(site, "--stop") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 of 2 stopped"
    assert "--stop" in (site / "lab1/started").read_text()
    assert not (site / "lab1/.exoskel").exists()


def test_no_client(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert up(site, "--ssh", "surely-no-ssh") == 1
    assert "install the OpenSSH client" in capsys.readouterr().out


def test_nothing_of_the_hosts_file_reaches_a_shell() -> None:
    arguments = argparse.Namespace(slots=None, policy=None, announce=False, python="/opt/my python")
    host = HostAddress("$(reboot)", 7601, "`reboot`")
    script = start_script(arguments, host, 10)
    assert "reboot" not in script
    assert "'/opt/my python'" in script
    assert os.linesep not in script
    own = host._replace(options=(("python", "$(reboot)"), ("key-memory", "`reboot`")))
    script = start_script(arguments, own, 10)
    assert "'$(reboot)'" in script
    assert "'--key-memory=`reboot`'" in script


def test_hosts_that_share_a_home_are_started_once_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One host is down; the second time nothing is started, nothing is issued, and no log is lost.

    Each host is an address of the loopback network with a name of its own; all listen on the same port, as workers do.
    """
    site = Site(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "home").mkdir()
    for path, text in (("ssh", SHARED_SSH), ("bin/uname", UNAME)):
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o755)
    (tmp_path / "bin/sitecustomize.py").write_text(NAMED)
    paths = [tmp_path / "bin", Path(ex.__file__).parents[1]]
    path = os.pathsep.join(map(str, paths))
    port = free_address().rpartition(":")[2]
    numbers = (2, 3, 4, 5, 9)
    lines = [
        f"127.0.0.{number}:{port} lab{number}.lab.example.org listen=127.0.0.{number} slots=1\n"
        for number in numbers
    ]
    (tmp_path / "hosts.txt").write_text("".join(lines))
    command = ["up", str(tmp_path / "hosts.txt"), "--ssh", str(tmp_path / "ssh")]
    command += ["--directory", str(tmp_path / "pki"), "--policy", str(site.policy)]
    command += ["--python", sys.executable]

    def issued() -> int:
        capsys.readouterr()
        assert main(["pki", "list", "--directory", str(tmp_path / "pki"), "--json"]) == 0
        return capsys.readouterr().out.count("lab.example.org")

    def states(*more: str) -> tuple[int, list[str]]:
        capsys.readouterr()
        code = main([*command, *more, "--json"])
        told = json.loads(capsys.readouterr().out)["hosts"]
        assert "Connection refused" in told[-1]["answer"]
        return code, [host["state"] for host in told]

    def answers() -> list[str]:
        capsys.readouterr()
        main([*command, "--json"])
        return [host["answer"] for host in json.loads(capsys.readouterr().out)["hosts"]]

    runs = tmp_path / "home/.exoskel/run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        before = issued()
        try:
            assert states() == (1, [*["started"] * 4, "failed"])
            logs = {log: log.stat().st_ino for log in runs.glob("*.log")}
            assert sorted(log.name for log in logs) == [
                f"worker-lab{number}-{port}.log" for number in numbers[:-1]
            ]
            for log in logs:
                log.write_text(f"{log.read_text()}a line\n")
            assert issued() == before + 4
            assert states() == (1, [*["running"] * 4, "failed"])
            assert issued() == before + 4
            site.policy.write_text(f"{site.policy.read_text()}# changed\n")
            told = answers()
            assert all(answer.endswith("policy replaced") for answer in told[:-1]), told
            assert all(answer.endswith("the same policy") for answer in answers()[:-1])
            assert all(log.read_text().endswith("a line\n") for log in logs)
            hosts = [line for line in lines if "127.0.0.9" not in line]
            with site.connect(ex.Farm(abs), 4, workers=hosts) as manager:
                assert list(manager.map([-1])) == [1]
                names = [worker.name for worker in manager.summary().workers]
            assert names == [f"lab{number}.lab.example.org" for number in numbers[:-1]]
        finally:
            assert states("--stop") == (1, [*["stopped"] * 4, "failed"])
    # For people, the reason stands in the table and nowhere else.
    (tmp_path / "hosts.txt").write_text(lines[-1])
    capsys.readouterr()
    assert main(command) == 1
    captured = capsys.readouterr()
    assert (captured.out + captured.err).count("Connection refused") == 1


def base_of(port: int) -> str:
    """Return how the files of a worker of this host begin."""
    return f"worker-{os.uname().nodename}-{port}"
