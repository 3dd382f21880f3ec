"""The programs that `make bench-links` measures, ours and the peers, all in ``target/links-peers``.

Python peers come from a lock file, peers in Rust from a workspace of their own with its own lock, and Debian's packages are fetched and
unpacked there: nothing is installed into the system. MPI libraries can't be had so: their packages have to be installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benches.machine import ROOT

SOURCES = ROOT / "benches" / "links" / "peers"
LOCK = ROOT / "benches" / "links" / "peers.lock"
PLACE = ROOT / "target" / "links-peers"
DEBIAN = PLACE / "debian"
# What is unpacked, with the libraries that a small system doesn't have.
PACKAGES = (
    "haproxy",
    "libopentracing-c-wrapper0",
    "libopentracing1",
    "libzmq3-dev",
    "libzmq5",
    "libnorm1",
    "libpgm-5.3-0",
    "libnng-dev",
    "libnng1",
    "libmbedtls14",
    "libmbedx509-1",
    "libmbedcrypto7",
    "liblua5.3-0",
    "openssh-server",
    "libwrap0",
)
LIBRARIES = DEBIAN / "usr" / "lib" / f"{os.uname().machine}-linux-gnu"
# Kept of what a build says.
COMPLAINT_MAX = 400


class Missing(Exception):
    """Something that can't be had here; the text names it."""


def run(command: Sequence[object], what: str, folder: Path = ROOT) -> None:
    """Run a build step."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-COMPLAINT_MAX:]
        raise Missing(f"{what}: {words[0]} failed: {said}")


def program(name: str, packages: str) -> str:
    """The path of a program of the system."""
    found = shutil.which(name)
    if found is None:
        raise Missing(f"{name} is missing: apt-get install {packages}")
    return found


def own() -> Path:
    """Our lanes."""
    example = ["--package", "exoskel-net", "--example", "link_lanes"]
    run(["cargo", "build", "--locked", "--release", "--quiet", *example], "our own lanes")
    return ROOT / "target" / "release" / "examples" / "link_lanes"


def python() -> Path:
    """An interpreter that has the Python peers."""
    folder = PLACE / "python"
    stamp, lock = folder / ".locked", LOCK.read_text()
    # By content: times say nothing about a lock file that git has written.
    if not stamp.exists() or stamp.read_text() != lock:
        run([sys.executable, "-m", "venv", "--clear", folder], "pyzmq and grpcio")
        pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet"]
        run([*pip, "--requirement", LOCK], "pyzmq and grpcio")
        stamp.write_text(lock)
    return folder / "bin" / "python"


def rust(name: str) -> Path:
    """A peer in Rust. All are built at once: one alone would have its libraries built anew."""
    target = PLACE / "cargo"
    words = ["--locked", "--release", "--quiet", "--target-dir", target]
    manifest = ["--manifest-path", SOURCES / "Cargo.toml"]
    run(["cargo", "build", *words, *manifest], name)
    return target / "release" / name


def debian() -> Path:
    """A folder with unpacked packages of Debian."""
    stamp, wanted = DEBIAN / ".unpacked", "\n".join(PACKAGES)
    if stamp.exists() and stamp.read_text() == wanted:
        return DEBIAN
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise Missing("apt-get is missing: packages of Debian can be had on Debian only")
    archives = PLACE / "archives"
    shutil.rmtree(archives, ignore_errors=True)
    archives.mkdir(parents=True)
    run(
        ["apt-get", "--quiet", "download", *PACKAGES],
        "Debian's packages (apt-get update first?)",
        archives,
    )
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "--extract", archive, DEBIAN], archive.name)
    stamp.write_text(wanted)
    return DEBIAN


def with_library(name: str) -> Path:
    """A peer in C, with a library of Debian's."""
    root = debian()
    built = PLACE / f"{name}_lane"
    compiler = [program("gcc", "gcc"), "-O2", "-Wall", "-I", root / "usr" / "include"]
    linker = ["-L", LIBRARIES, f"-Wl,-rpath,{LIBRARIES}", f"-l{name}", "-lpthread"]
    # The libraries of a library stand beside it.
    indirect = f"-Wl,-rpath-link,{LIBRARIES}"
    run([*compiler, SOURCES / f"{name}_lane.c", "-o", built, indirect, *linker], name)
    return built


def libraries() -> dict[str, str]:
    """The environment in which unpacked programs find their libraries."""
    return {"LD_LIBRARY_PATH": str(LIBRARIES)}


def mpi(library: str) -> Path:
    """Round trips of an MPI library."""
    packages = {"mpich": "mpich libmpich-dev", "openmpi": "openmpi-bin libopenmpi-dev"}[library]
    PLACE.mkdir(parents=True, exist_ok=True)
    built = PLACE / f"mpi_lane.{library}"
    compiler = program(f"mpicc.{library}", packages)
    run([compiler, "-O2", "-Wall", SOURCES / "mpi_lane.c", "-o", built], library)
    return built


def certificates(folder: Path) -> None:
    """An authority and one certificate for both ends of a TLS peer: authority.pem, chain.pem, key.pem."""
    openssl = program("openssl", "openssl")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    request = [openssl, "req", "-x509", *curve]
    own_key = folder / "authority-key.pem"
    subject = ["-subj", "/CN=bench authority", "-addext", "keyUsage=keyCertSign"]
    authority = folder / "authority.pem"
    run([*request, *subject, "-keyout", own_key, "-out", authority], "openssl")
    names = ["-addext", "subjectAltName=DNS:localhost", "-addext", "basicConstraints=CA:FALSE"]
    signed = ["-CA", authority, "-CAkey", own_key]
    leaf = ["-keyout", folder / "key.pem", "-out", folder / "chain.pem"]
    run([*request, "-subj", "/CN=localhost", *names, *signed, *leaf], "openssl")


def unpacked_versions() -> list[str]:
    """Names and versions of Debian's packages that are measured."""
    measured = ("haproxy", "libzmq5", "libnng1", "openssh-server")
    names = (archive.name for archive in (PLACE / "archives").glob("*.deb"))
    parts = (name.split("_") for name in sorted(names))
    # A colon stands there as no file name can have it.
    named = ((name, version.replace("%3a", ":")) for name, version, *_ in parts)
    return [f"{name} {version}" for name, version in named if name in measured]
