"""Simulations with the runtime's own parts: session-key caches under traces of real programs, and the whole system with faults.

`capacity` answers from a formula. `keycache` runs traces through caches, keys only or on interconnect cards in virtual time, and
returns tables. `live` runs a trace over real links between local nodes. `pack` makes traces of what other tools wrote, `on_off` and `requests` make them up. `paper` repeats the tables and figures of a paper (``docs/paper-key-cache.md``).
`system` plays manager, workers and users in virtual time, with faults; `links` plays programs that link to each other, `jobs`
processes on several hosts that end together (``docs/virtual-time.md``)::

    from exoskel import sim

    sim.capacity(128, off_on=7.66, hit=0.9)
    table = sim.keycache("traces/cg.A.16.skct.zst", entries=range(1, 9))
    table["hit_rate"], table.to_pandas()
    assert sim.system(seed=604264).broken is None
    assert sim.links(seed=7, nodes=3, faults=["cut", "kill"]).broken is None
    assert sim.jobs(seed=7).broken is None

Tables are NumPy arrays and pictures are drawn by matplotlib: ``pip install '.[plot]'`` in a checkout has both. `capacity`, `system`, `links` and `jobs` need neither.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .figures.produce import paper
    from .import_trace import Packed, pack
    from .job_seeds import JobsRun, jobs
    from .link_seeds import LinksRun, links
    from .live_runs import Live, live
    from .model import capacity
    from .runs import Stopped
    from .seeds import SystemRun, system
    from .sweep import keycache
    from .synthetic import on_off, requests
    from .tables import Table

__all__ = [
    "JobsRun",
    "LinksRun",
    "Live",
    "Packed",
    "Stopped",
    "SystemRun",
    "Table",
    "capacity",
    "jobs",
    "keycache",
    "links",
    "live",
    "on_off",
    "pack",
    "paper",
    "requests",
    "system",
]

_HOMES = {
    "JobsRun": "job_seeds",
    "LinksRun": "link_seeds",
    "Live": "live_runs",
    "Packed": "import_trace",
    "Stopped": "runs",
    "SystemRun": "seeds",
    "Table": "tables",
    "capacity": "model",
    "jobs": "job_seeds",
    "keycache": "sweep",
    "links": "link_seeds",
    "live": "live_runs",
    "on_off": "synthetic",
    "pack": "import_trace",
    "paper": "figures.produce",
    "requests": "synthetic",
    "system": "seeds",
}


def __getattr__(name: str) -> object:
    """Load a public name when it is first used (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted({*globals(), *__all__})
