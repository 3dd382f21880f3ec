"""Versions of the packages that a program uses, where a worker has others than its manager."""

import sys
from collections.abc import Iterable, Sequence
from functools import cache

__all__ = ["differing", "stated"]

# Arrays are written by the one of the manager and read by those of its workers, in whatever function.
_ALWAYS = ("numpy",)


def stated(modules: Iterable[str]) -> list[tuple[str, str]]:
    """Return the packages of this process whose versions a worker should have as well.

    Parameters
    ----------
    modules : iterable of str
        The top-level modules that a program needs. Packages that all programs use are added, if they are loaded here.

    Returns
    -------
    list of tuple of str
        The name and the version of each package.
    """
    names = {*modules, *(name for name in _ALWAYS if name in sys.modules)}
    packages = {package for name in names if (package := _package_of(name)) is not None}
    found = ((package, _version(package)) for package in sorted(packages))
    return [(package, version) for package, version in found if version is not None]


def differing(packages: Sequence[tuple[str, str]]) -> list[str]:
    """Compare versions with those of this process. What isn't here at all is for others to say.

    Parameters
    ----------
    packages : sequence of tuple of str
        As `stated` returned them at the manager.

    Returns
    -------
    list of str
        For each package of another version, its name, the version here, and the manager's.
    """
    here = ((package, _version(package), expected) for package, expected in packages)
    return [
        f"{package} {got}, not {expected}"
        for package, got, expected in here
        if got is not None and got != expected
    ]


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        found: str | None = version(package)
    except (PackageNotFoundError, ValueError):
        return None
    # Whoever shows it takes nothing else.
    return found if found is not None and found.isascii() and found.isprintable() else None


def _package_of(module: str) -> str | None:
    """Return the package that has brought a module: most have its name."""
    if _version(module) is not None:
        return module
    return next(iter(_packages().get(module, ())), None)


@cache
def _packages() -> dict[str, list[str]]:
    from importlib.metadata import packages_distributions

    return {module: list(packages) for module, packages in packages_distributions().items()}
