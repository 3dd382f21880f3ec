"""A cluster of the tests' own: real `munged`, `slurmctld` and two `slurmd`, on loopback, with a key and ports of their own."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.processes import eventually
from tests.site import free_address

_PLACES = "/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin"
_TOOLS = (
    "munged",
    "munge",
    "unmunge",
    "slurmctld",
    "slurmd",
    "srun",
    "sinfo",
    "scontrol",
    "sbatch",
)
NODES = ("node1", "node2")
CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge_socket}
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SwitchType=switch/none
MpiDefault=none
EnforcePartLimits=ALL
ReturnToService=2
KillWait=2
SlurmdParameters=config_overrides
NodeName=DEFAULT CPUs={processors} RealMemory=1000
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first_port}
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second_port}
PartitionName=test Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """Where it is."""

    place: Path
    munge_socket: str
    configuration: str

    def run(self, *words: str) -> str:
        """Run one of Slurm's commands, and return what it prints."""
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    def states(self) -> list[str]:
        """Return how the nodes stand."""
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%T"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout.split()


def missing() -> str | None:
    """Say what is not here that a cluster needs."""
    tools = [tool for tool in _TOOLS if shutil.which(tool, path=_PLACES) is None]
    if tools:
        return f"{', '.join(tools)} missing: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "slurmd needs root"


@contextlib.contextmanager
def cluster(processors: int = 4) -> Iterator[Cluster]:
    """Run a cluster whose two nodes have so many processors each; this process's commands of Slurm lead to it."""
    with contextlib.ExitStack() as running:
        # Everybody must be able to reach munged's socket, and nobody may write there.
        place = Path(tempfile.mkdtemp(prefix="exoskel-slurm-", dir="/tmp"))
        running.callback(shutil.rmtree, place)
        place.chmod(0o711)
        munge_socket = start_munged(place, running)
        ports = [int(free_address().rpartition(":")[2]) for _ in range(3)]
        configuration = place / "slurm.conf"
        configuration.write_text(
            CONFIGURATION.format(
                host=socket.gethostname().partition(".")[0],
                place=place,
                munge_socket=munge_socket,
                controller_port=ports[0],
                processors=processors,
                first_port=ports[1],
                second_port=ports[2],
            )
        )
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (place / name).mkdir(mode=0o700)
        before = os.environ.get("SLURM_CONF")
        os.environ["SLURM_CONF"] = str(configuration)
        running.callback(_restore, before)
        made = Cluster(place, munge_socket, str(configuration))
        _start("slurmctld", ["slurmctld", "-D", "-f", str(configuration)], place, running)
        for node in NODES:
            words = ["slurmd", "-D", "-N", node, "-f", str(configuration)]
            _start(f"slurmd-{node}", words, place, running)
        assert eventually(lambda: made.states() == ["idle", "idle"]), logs(place)
        yield made


def start_munged(place: Path, running: contextlib.ExitStack) -> str:
    """Run `munged` with a key of its own, and return where it listens."""
    key, munge_socket = place / "key", place / "munge.socket"
    with open(key, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write(secrets.token_bytes(64))
    words = ["munged", "--foreground", f"--socket={munge_socket}", f"--key-file={key}"]
    words += [f"--{what}-file={place / what}" for what in ("log", "pid", "seed")]
    _start("munged", words, place, running)
    assert eventually(munge_socket.is_socket), logs(place)
    return str(munge_socket)


def logs(place: Path) -> str:
    """Return what the daemons have said."""
    return "\n".join(log.read_text() for log in sorted(place.glob("*.out")))


def _start(name: str, words: list[str], place: Path, running: contextlib.ExitStack) -> None:
    path = shutil.which(words[0], path=_PLACES)
    assert path is not None
    with open(place / f"{name}.out", "wb") as log:
        process = subprocess.Popen(
            [path, *words[1:]], stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    running.callback(_stop, process)


def _restore(configuration: str | None) -> None:
    os.environ.pop("SLURM_CONF", None)
    if configuration is not None:
        os.environ["SLURM_CONF"] = configuration


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    process.wait(60)
