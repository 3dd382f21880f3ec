"""Checks a wheel: that an old system can load it, that it is small, and that it gives a result where there is no Rust.

``make wheel`` runs it: ``python packaging/check_wheel.py dist/WHEEL``.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["needed_versions"]

# Debian 10, RHEL 8 and Ubuntu 20.04 have it, or a newer one.
GLIBC_NEWEST = (2, 28)
BYTES_MAX = 11_000_000
LIBRARY = "exoskel/native/lib/libexoskel.so"
# Who links programs in C and Fortran needs these, and nothing of what keepers need for other hosts.
NATIVE = (LIBRARY, "exoskel/native/include/exoskel.h", "exoskel/native/include/exoskel.f90")
ABSENT = (b"tokio", b"rustls", b"aws_lc")
_SECTION_OF_NEEDED_VERSIONS = 0x6FFFFFFE

FIRST_RESULT = """\
import exoskel as ex

with ex.Manager(abs, ex.ParDegree(1)) as manager:
    print(list(manager.map([-1, 2, -3])))
"""


def needed_versions(library: bytes) -> set[str]:
    """Return the versions of symbols that a shared library asks other libraries for, such as ``GLIBC_2.28``.

    Parameters
    ----------
    library : bytes
        An ELF file of 64 bits, little-endian.

    Returns
    -------
    set of str
        The versions, of all libraries together.

    Raises
    ------
    ValueError
        If it is no such file.
    """
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("got no ELF file of 64 bits, little-endian")
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, _names = struct.unpack_from("<HHH", library, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, table + i * size) for i in range(count)]
    needed = [section for section in sections if section[1] == _SECTION_OF_NEEDED_VERSIONS]
    return {name for section in needed for name in _names_of(library, section, sections)}


def _names_of(
    library: bytes, section: tuple[int, ...], sections: list[tuple[int, ...]]
) -> Iterator[str]:
    """Yield the names of one section: a chain of libraries, each with a chain of versions."""
    strings = sections[section[6]][4]
    place = section[4]
    while True:
        _version, count, _file, first, following = struct.unpack_from("<HHIII", library, place)
        entry = place + first
        for _ in range(count):
            _hash, _flags, _other, name, distance = struct.unpack_from("<IHHII", library, entry)
            start = strings + name
            yield library[start : library.index(b"\0", start)].decode("ascii")
            entry += distance
        if following == 0:
            return
        place += following


def check_libraries(wheel: Path) -> str:
    """Return the newest version of glibc that the wheel's extension modules ask for; end the program if it is too new."""
    newest = (0, 0)
    with zipfile.ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        if not libraries:
            sys.exit(f"{wheel}: got no extension module")
        for name in libraries:
            versions = needed_versions(archive.read(name))
            # Threads that Python ends at its own end are unwound by the system's library, which reads no frames of another one.
            if not any(version.startswith("GCC_") for version in versions):
                sys.exit(f"{wheel}: got an unwinder inside {name}, expected that of libgcc_s.so.1")
            for version in versions:
                if found := re.fullmatch(r"GLIBC_(\d+)\.(\d+)(?:\.\d+)?", version):
                    newest = max(newest, (int(found[1]), int(found[2])))
    said = "{}.{}".format(*newest)
    if newest > GLIBC_NEWEST:
        sys.exit(f"{wheel}: got symbols of glibc {said}, expected none above 2.28")
    return said


def check_native(wheel: Path) -> int:
    """Return the size of the library for C and Fortran in bytes; end the program if something is missing, or too much is there."""
    with zipfile.ZipFile(wheel) as archive:
        if missing := sorted(set(NATIVE) - set(archive.namelist())):
            sys.exit(f"{wheel}: got no {', '.join(missing)}")
        library = archive.read(LIBRARY)
        header = archive.read(NATIVE[1]).decode("utf-8")
    if found := [word.decode() for word in ABSENT if word in library]:
        sys.exit(f"{wheel}: got {', '.join(found)} inside {LIBRARY}, expected members without them")
    functions = set(re.findall(r"\b(exoskel_\w+)\(", header))
    if absent := sorted(name for name in functions if f"\0{name}\0".encode() not in library):
        sys.exit(f"{wheel}: got no {', '.join(absent)} in {LIBRARY}, expected what exoskel.h says")
    return len(library)


def first_program(place: Path, environment: dict[str, str]) -> None:
    """Compile and run a program in C as `exoskel config` says, where there is a compiler."""
    program = place / "version.c"
    program.write_text(
        '#include <stdio.h>\n#include "exoskel.h"\nint main(void) { return puts(exoskel_version()) < 0; }\n'
    )
    line = (
        "cc -o version version.c $(exoskel config --cflags --libs) && ./version && exoskel version"
    )
    done = subprocess.run(
        line, shell=True, cwd=place, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    library, package = done.stdout.splitlines()
    if not package.startswith(f"exoskel {library},"):
        sys.exit(f"got a library of version {library}, the package says {package}")


def first_result(wheel: Path) -> tuple[float, float]:
    """Return the seconds that an installation takes in a new environment, and those of a first result, where there is no Rust."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        venv.create(place / "venv", with_pip=True)
        python = str(place / "venv" / "bin" / "python")
        environment = {
            "PATH": f"{place / 'venv' / 'bin'}:/usr/bin:/bin",
            "HOME": folder,
            **{
                name: value
                for name, value in os.environ.items()
                if name.startswith(("PIP_", "LANG"))
            },
        }
        run = {"check": True, "cwd": folder, "env": environment}
        begun = time.monotonic()
        words = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", str(wheel)]
        subprocess.run(words, **run)  # type: ignore[call-overload]
        installed = time.monotonic()
        program = place / "first.py"
        program.write_text(FIRST_RESULT)
        answer = subprocess.run([python, program], stdout=subprocess.PIPE, text=True, **run)  # type: ignore[call-overload]
        if answer.stdout != "[1, 2, 3]\n":
            sys.exit(f"{wheel}: got {answer.stdout!r} from the first program, expected [1, 2, 3]")
        result = time.monotonic() - installed
        first_program(place, environment)
        return installed - begun, result


def main(wheel: Path) -> None:
    """Check a wheel and print what was found; end with exit code 1 if it is not as promised."""
    if "-manylinux_2_28_" not in wheel.name:
        sys.exit(f"{wheel}: got another platform, expected manylinux_2_28")
    size = wheel.stat().st_size
    if size > BYTES_MAX:
        sys.exit(f"{wheel}: got {size:,} bytes, expected at most {BYTES_MAX:,}")
    glibc = check_libraries(wheel)
    library = check_native(wheel)
    install, result = first_result(wheel.resolve())
    print(
        f"{wheel}: {size / 1e6:.1f} MB, with {library / 1e6:.1f} MB of libexoskel unpacked, needs glibc {glibc}; installed in {install:.1f} s, first result after {result:.1f} s more"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
