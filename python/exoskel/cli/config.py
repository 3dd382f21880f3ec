"""``exoskel config``: what compilers need for programs in C and Fortran, as ``pkg-config`` and ``python3-config`` say it."""

import argparse
import re
from pathlib import Path

from .. import __version__
from ..errors import ExoskelError
from .report import Commands, report

__all__ = ["add_commands"]

# Beside this package: in the wheel, and where `make .venv/.built` has put them in a checkout.
_PREFIX = Path(__file__).resolve().parent.parent / "native"


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``config``."""
    parser = commands.add_parser(
        "config",
        parents=[common],
        help="print what compilers need for programs in C and Fortran",
        description="Print compilers' options, on one line: cc ocean.c $(exoskel config --cflags --libs). For Fortran: "
        "gfortran $(exoskel config --cflags --fortran) ocean.f90 $(exoskel config --libs). Programs find the library where it is now.",
    )
    parser.add_argument(
        "--prefix", action="store_true", help="print the folder that holds include and lib"
    )
    parser.add_argument(
        "--cflags", action="store_true", help="print what finds the header exoskel.h"
    )
    parser.add_argument(
        "--fortran",
        action="store_true",
        help="print the source of the Fortran module, to be compiled first",
    )
    parser.add_argument(
        "--libs", action="store_true", help="print what links the library, and finds it at run time"
    )
    parser.set_defaults(run=_config)


def _config(arguments: argparse.Namespace) -> int:
    words = _words(_PREFIX)
    asked = [name for name in words if getattr(arguments, name)]
    if asked and not arguments.json:
        _check_for_shells(_PREFIX)
        text = " ".join(word for name in asked for word in words[name])
    else:
        lines = [(f"--{name}", " ".join(words[name])) for name in words]
        text = "\n".join(f"{option:<10} {value}" for option, value in lines)
    data = {
        "version": __version__,
        "prefix": str(_PREFIX),
        "cflags": words["cflags"],
        "fortran": words["fortran"][0],
        "libs": words["libs"],
    }
    report(arguments, text, data)
    return 0


def _words(prefix: Path) -> dict[str, list[str]]:
    """Return the answer to each option; an installation without the library is an error."""
    include, library = prefix / "include", prefix / "lib"
    source = include / "exoskel.f90"
    needed = [include / "exoskel.h", source, library / "libexoskel.so"]
    if missing := [str(file) for file in needed if not file.exists()]:
        raise ExoskelError(
            f"this installation has no {missing[0]}: install a wheel of Exoskel, or run make .venv/.built in its checkout"
        )
    return {
        "prefix": [str(prefix)],
        "cflags": [f"-I{include}"],
        "fortran": [str(source)],
        "libs": [f"-L{library}", f"-Wl,-rpath,{library}", "-lexoskel"],
    }


def _check_for_shells(prefix: Path) -> None:
    """Refuse what a shell would take apart; a comma ends an option for the linker."""
    if found := re.search(r"[\s,*?\[\]]", str(prefix)):
        raise ExoskelError(
            f"Exoskel is installed in {str(prefix)!r}, which has {found[0]!r} in it: shells and linkers would take it apart. "
            "Install it elsewhere, or take the words from exoskel config --json"
        )
