"""The programs that `make bench-redist` measures, ours and the peers in C: built when a part asks for them, in ``target/redist``."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from benches.links.install import Missing, program, run
from benches.machine import ROOT
from benches.redist.frame import SOURCES

PLACE = ROOT / "target" / "redist"
LOCK = SOURCES / "peers.lock"
PACKAGES = {"openmpi": "openmpi-bin libopenmpi-dev", "mpich": "mpich libmpich-dev"}
MPI = {
    "openmpi": ["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"],
    "mpich": [],
}
MPI_OVER_TCP = {
    "openmpi": [
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        "tcp,self",
        "--mca",
        "btl_tcp_if_include",
        "lo",
    ],
    "mpich": ["-genv", "MPIR_CVAR_NOLOCAL", "1"],
}


def ours() -> Path:
    """A process of a coupled program, in C."""
    return coupled("ours")


def first_version() -> Path:
    """The same, with one version as soon as it can be."""
    return coupled("first_version")


def round_trip() -> Path:
    """The same, with one number there and back; and two processes that wake each other by futexes."""
    return coupled("round_trip")


@functools.cache
def coupled(source: str) -> Path:
    """A program of this folder with our library."""
    cargo = ["cargo", "build", "--locked", "--quiet", "--release", "--package", "exoskel-c"]
    run(cargo, "libexoskel")
    libraries = ROOT / "target" / "release"
    header = ROOT / "crates" / "c" / "include"
    return compiled(
        "cc",
        source,
        "-I",
        header,
        "-L",
        libraries,
        f"-Wl,-rpath,{libraries}",
        "-lexoskel",
    )


@functools.cache
def strided() -> Path:
    """The limit: a strided copy by two threads."""
    return compiled("cc", "strided", "-lpthread")


@functools.cache
def alltoallw(library: str) -> Path:
    """MPI's own redistribution."""
    return compiled(compiler(library), "alltoallw", name=f"alltoallw.{library}")


@functools.cache
def scalapack() -> Path:
    """ScaLAPACK's redistribution, with Open MPI."""
    try:
        return compiled(compiler("openmpi"), "pdgemr2d", "-lscalapack-openmpi")
    except Missing as error:
        raise Missing(f"{error} (apt-get install libscalapack-openmpi-dev)") from error


@functools.cache
def python() -> Path:
    """An interpreter that has the peers in Python."""
    folder = PLACE / "python"
    stamp, lock = folder / ".locked", LOCK.read_text()
    # By content: times say nothing about a lock file that git has written.
    if not stamp.exists() or stamp.read_text() != lock:
        run([sys.executable, "-m", "venv", "--clear", folder], "the peers in Python")
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        run([*pip, "--requirement", LOCK], "the peers in Python")
        stamp.write_text(lock)
    return folder / "bin" / "python"


def compiler(library: str) -> str:
    """The C compiler of an MPI library."""
    return program(f"mpicc.{library}", PACKAGES[library])


def starter(library: str, processes: int, *, is_tcp: bool = False) -> list[object]:
    """What starts so many processes with an MPI library."""
    start = program(f"mpiexec.{library}", PACKAGES[library])
    transport = MPI_OVER_TCP[library] if is_tcp else []
    return [start, *MPI[library], *transport, "-n", processes]


def compiled(compiler: str, source: str, *options: object, name: str | None = None) -> Path:
    """Compile a program of this folder."""
    PLACE.mkdir(parents=True, exist_ok=True)
    built = PLACE / (name or source)
    words = ["-O3", "-Wall", "-o", built, SOURCES / f"{source}.c", *options]
    run([compiler, *words], source)
    return built
