"""The machine under a bench: its packages, cores, trust directories, and the CPU time of its processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from benches.site.people import VO, People

GRID_SECURITY = Path("/etc/grid-security")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
# Programs and the Debian packages that have them.
PACKAGES = {
    "openssl": "openssl",
    "voms-proxy-fake": "voms-clients",
    "apache2": "apache2-bin",
    "siege": "siege",
}
GRIDSITE = Path("/usr/lib/apache2/modules/mod_gridsite.so")


class Missing(Exception):
    """Something that the machine's administrator would have to install."""


def install(*programs: str) -> None:
    """Gets Debian packages where they are missing and we are root."""
    wanted = [PACKAGES[name] for name in programs if shutil.which(name) is None]
    if "apache2" in programs and not GRIDSITE.exists():
        wanted.append("gridsite")
    if not wanted:
        return
    line = f"apt-get install {' '.join(wanted)}"
    if os.geteuid() or shutil.which("apt-get") is None:
        raise Missing(f"missing, and we can't install it here: {line}")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for words in (["update"], ["install", "--yes", "--no-install-recommends", *wanted]):
        command = ["apt-get", "--quiet", "--quiet", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Missing(f"{line} failed: {done.stderr.strip()[-500:]}")


def cores() -> tuple[int, int]:
    """A core for servers and another one for their clients."""
    available = sorted(os.sched_getaffinity(0))
    if len(available) < 2:
        raise Missing("got one core, expected two: one for the server and one for its clients")
    return available[0], available[-1]


@contextlib.contextmanager
def trusted_by_gridsite(people: People) -> Iterator[None]:
    """Puts the authority where mod_gridsite looks for it, its path is compiled in; and takes it away again.

    Nothing that exists is overwritten: the names are this bench's own, and a file of that name ends the run.
    """
    certificates = GRID_SECURITY / "certificates"
    organisation = GRID_SECURITY / "vomsdir" / VO
    placed: list[Path] = []
    # Whoever ends the run with SIGTERM wants it tidied up too.
    previous = signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    try:
        for source in sorted(people.anchors.iterdir()):
            target = certificates / source.name
            place(source, target)
            placed.append(target)
        for source in sorted((people.vomsdir / VO).iterdir()):
            target = organisation / source.name
            place(source, target)
            placed.append(target)
        yield
    finally:
        for target in placed:
            target.unlink(missing_ok=True)
        # Only if nobody else has put anything there.
        with contextlib.suppress(OSError):
            organisation.rmdir()
        signal.signal(signal.SIGTERM, previous)


def place(source: Path, target: Path) -> None:
    """Copies a file to where none is."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            file.write(source.read_bytes())
    except PermissionError as error:
        raise Missing(f"mod_gridsite reads {target}, which only root can make: {error}") from error
    except FileExistsError as error:
        text = f"{target} is there already: remove it if it is left from an earlier bench"
        raise Missing(text) from error


def cpu_seconds(session: int) -> float:
    """User and system time of all processes of a session, those that have ended and were waited for included."""
    ticks = 0
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The name in parentheses may hold anything; the fields follow it.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session:
                ticks += sum(map(int, fields[11:15]))
    return ticks / TICKS_PER_SECOND
