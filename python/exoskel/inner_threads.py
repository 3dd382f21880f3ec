"""How many threads the libraries inside a slot start: BLAS, OpenMP and the like take all cores each, unless they are told."""

from __future__ import annotations

import os

from .cores import usable_cores

__all__ = ["limit_loaded", "variables"]

# What these libraries read when they are loaded.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)


def variables(inner_threads: int | None, slots: int) -> dict[str, str]:
    """Return what a slot's environment has to say, before any library is loaded.

    Parameters
    ----------
    inner_threads : int or None
        As the option says: None for the slot's share of the cores, 0 for no limit.
    slots : int
        How many slots share this host's cores.

    Returns
    -------
    dict of str to str
        Variables and their values. A share leaves out what the user has set; a number that was asked for doesn't.
    """
    if inner_threads == 0:
        return {}
    if inner_threads is not None:
        return dict.fromkeys(VARIABLES, str(inner_threads))
    share = str(max(1, usable_cores() // slots))
    return {name: share for name in VARIABLES if name not in os.environ}


def limit_loaded(threads: int) -> None:
    """Limit libraries that were loaded before their variables were set, if threadpoolctl is installed, which can do that.

    Parameters
    ----------
    threads : int
        How many threads each may have.
    """
    from importlib import import_module

    try:
        threadpoolctl = import_module("threadpoolctl")
    except ImportError:
        return
    threadpoolctl.threadpool_limits(threads)
