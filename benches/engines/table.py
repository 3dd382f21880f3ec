"""The report as text: what each engine did, then every goal with our ratio. A goal missed says so."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

PLAIN, ENCRYPTED, LOCAL = "exoskel_tcp_plain", "exoskel_tcp_encrypted", "exoskel_socketpair"
MEASURES = [
    ("noop", "items_per_s", "no-op items/s", "{:,.0f}"),
    ("noop", "chunked_items_per_s", "best chunk*", "{:,.0f}"),
    ("roundtrip", "p50_us", "trip p50 us", "{:,.0f}"),
    ("roundtrip", "p99_us", "p99 us", "{:,.0f}"),
    ("bulk", "mib_per_s", "1 MiB MiB/s", "{:,.0f}"),
    ("pipeline", "items_per_s", "2 stages/s", "{:,.0f}"),
    ("pipeline", "serial_items_per_s", "1st in Seq/s", "{:,.0f}"),
    ("memory", "peak_mib", "peak MiB", "{:,.0f}"),
    ("memory", "resident_mib", "resident MiB", "{:,.0f}"),
    ("kill", "results", "killed: got", "{:.0f}"),
    ("kill", "started_twice", "twice", "{:.0f}"),
    ("startup", "import_ms", "import ms", "{:.0f}"),
    ("startup", "ready_ms", "ready ms", "{:.0f}"),
]


class Numbers:
    """Values by engine, part and name, one for each round."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.runs = report["runs"]

    def all(self, engine: str, part: str, name: str) -> list[float]:
        """The rounds in order; a failed round is missing."""
        found = [r["values"] for r in self.runs if (r["engine"], r["part"]) == (engine, part)]
        return [values[name] for values in found if name in values]

    def median(self, engine: str, part: str, name: str) -> float | None:
        """The middle over the rounds, or nothing."""
        values = self.all(engine, part, name)
        return statistics.median(values) if values else None

    def paired(self, ours: str, theirs: str, part: str, name: str) -> float | None:
        """Median of the ratios round by round: what disturbs a round disturbs both."""
        pairs = zip(self.all(ours, part, name), self.all(theirs, part, name), strict=False)
        ratios = [a / b for a, b in pairs]
        return statistics.median(ratios) if ratios else None


@dataclass(frozen=True)
class Goal:
    """One line of the second table."""

    text: str
    bound: float
    at_least: bool
    value: Callable[[Numbers, str], float | None]
    subjects: tuple[str, ...] = (PLAIN, LOCAL)

    def line(self, numbers: Numbers, subject: str) -> str | None:
        """The goal, what was measured, and whether that is enough."""
        value = self.value(numbers, subject)
        if value is None:
            return None
        met = value >= self.bound if self.at_least else value <= self.bound
        sign = ">=" if self.at_least else "<="
        verdict = "met" if met else "MISSED"
        return f"{self.text:<52} {subject:<22} {sign} {self.bound:<7.4g} {value:>10.4g}  {verdict}"


def against(
    part: str, name: str, *peers: str, best: Callable[..., float] = max
) -> Callable[[Numbers, str], float | None]:
    """Our ratio to a peer; of a peer's variants, to the one that is hardest to beat."""

    def ratio(numbers: Numbers, ours: str) -> float | None:
        medians = {peer: numbers.median(peer, part, name) for peer in peers}
        there = {peer: value for peer, value in medians.items() if value is not None}
        if not there:
            return None
        hardest = best(there, key=lambda peer: there[peer])
        return numbers.paired(ours, str(hardest), part, name)

    return ratio


def own(part: str, name: str) -> Callable[[Numbers, str], float | None]:
    """A number of our own, without a peer."""
    return lambda numbers, ours: numbers.median(ours, part, name)


def started_twice_over_unfinished(numbers: Numbers, ours: str) -> float | None:
    """Tasks started twice, less those the dead worker had begun and not ended."""
    twice = numbers.median(ours, "kill", "started_twice")
    unfinished = numbers.median(ours, "kill", "unfinished_there")
    return None if twice is None or unfinished is None else twice - unfinished


def pipeline_over_farm(name: str) -> Callable[[Numbers, str], float | None]:
    """Two stages over one."""

    def ratio(numbers: Numbers, ours: str) -> float | None:
        two = numbers.median(ours, "pipeline", name)
        one = numbers.median(ours, "noop", "items_per_s")
        return two / one if two and one else None

    return ratio


def grain(kib: int, protection: str, name: str) -> Callable[[Numbers, str], float | None]:
    """The efficiency at three round trips a task."""

    def efficiency(numbers: Numbers, _ours: str) -> float | None:
        points = [p for run in numbers.all("exoskel_grain", "grain", "points") for p in run]  # type: ignore[attr-defined]
        found = [
            p for p in points if (p["kib"], p["grain"], p["protection"]) == (kib, 3, protection)
        ]
        return found[0][name] if found else None

    return efficiency


def link(name: str) -> Callable[[Numbers, str], float | None]:
    """A number of the Rust program."""
    return lambda numbers, _ours: numbers.median("link", "link", name)


TO_PLAIN = (ENCRYPTED,)
GOALS = [
    Goal(
        "no-op items/s over Pool.imap, chunksize 1", 8, True, against("noop", "items_per_s", "pool")
    ),
    Goal(
        "no-op items/s over Ray actors", 50, True, against("noop", "items_per_s", "ray", "ray_tcp")
    ),
    Goal("no-op items/s over Dask", 500, True, against("noop", "items_per_s", "dask_tcp")),
    Goal(
        "round trip p50 over ProcessPoolExecutor",
        0.8,
        False,
        against("roundtrip", "p50_us", "process_pool"),
    ),
    Goal(
        "round trip p50 over Ray",
        1 / 5,
        False,
        against("roundtrip", "p50_us", "ray", "ray_tcp", best=min),
    ),
    Goal("round trip p50 over Dask", 1 / 40, False, against("roundtrip", "p50_us", "dask_tcp")),
    Goal("1 MiB over mpi4py.futures on TCP", 1.2, True, against("bulk", "mib_per_s", "mpi4py")),
    Goal("1 MiB over Dask scatter + direct", 2.5, True, against("bulk", "mib_per_s", "dask_tcp")),
    Goal("1 MiB over Ray", 4, True, against("bulk", "mib_per_s", "ray", "ray_tcp")),
    Goal(
        "encrypted over plain: no-op items/s",
        0.95,
        True,
        against("noop", "items_per_s", PLAIN),
        TO_PLAIN,
    ),
    Goal(
        "encrypted over plain: round trip p50",
        1.1,
        False,
        against("roundtrip", "p50_us", PLAIN),
        TO_PLAIN,
    ),
    Goal("encrypted over plain: 1 MiB", 0.85, True, against("bulk", "mib_per_s", PLAIN), TO_PLAIN),
    Goal("two stages over one, items/s", 0.5, True, pipeline_over_farm("items_per_s")),
    Goal(
        "the first of two in Seq, over one farm, items/s",
        0.5,
        True,
        pipeline_over_farm("serial_items_per_s"),
    ),
    Goal(
        "peak memory over Dask's", 0.1, False, against("memory", "peak_mib", "dask_tcp", best=min)
    ),
    Goal(
        "the same, shared pages counted for each process",
        0.1,
        False,
        against("memory", "resident_mib", "dask_tcp", best=min),
    ),
    Goal("results after a kill, of 80", 80, True, own("kill", "results")),
    Goal("started twice, less those unfinished there", 0, False, started_twice_over_unfinished),
    Goal("import over bare Python, ms", 30, False, own("startup", "import_ms"), (LOCAL,)),
    Goal(
        "two local slots ready, first results, ms", 150, False, own("startup", "ready_ms"), (LOCAL,)
    ),
    *[
        Goal(
            f"efficiency at G = 3, {kib} KiB, {protection}",
            0.95,
            True,
            grain(kib, protection, "efficiency"),
            ("grain",),
        )
        for kib in (64, 1024)
        for protection in ("plain", "encrypted")
    ],
    *[
        Goal(
            f"link: {protection} 1 MiB stream over raw TCP{how}",
            goal,
            True,
            link(f"{protection}_over_{raw}"),
            ("link",),
        )
        for how, raw in ((" as the system sets it", "raw"), (", not paced either", "unpaced"))
        for protection, goal in (("encrypted", 0.9), ("plain", 0.97))
    ],
    Goal(
        "link: encrypted 64 B ping-pong over plain, polling",
        1.1,
        False,
        link("pingpong_encrypted_over_plain"),
        ("link",),
    ),
]


def render(report: dict[str, Any]) -> str:
    """Both tables, with the machine above and the reasons for gaps below."""
    numbers = Numbers(report)
    machine = report["machine"]
    engines = list(dict.fromkeys(run["engine"] for run in report["runs"]))
    used = [m for m in MEASURES if any(numbers.all(engine, m[0], m[1]) for engine in engines)]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, Linux {machine['kernel']}, "
        f"Python {machine['python']}, {machine['date']}",
        "  ".join(machine["peers"]),
        f"Two slots each. Medians of {report['rounds']} rounds, engines in turn."
        + (" QUICK RUN: the numbers say little." if report["quick"] else ""),
        "",
    ]
    if used:
        lines.append(f"{'engine':<22}" + "".join(f"{head:>15}" for _, _, head, _ in used))
    for engine in engines:
        cells = [(numbers.median(engine, part, name), form) for part, name, _, form in used]
        if any(value is not None for value, _ in cells):
            texts = ["-" if value is None else form.format(value) for value, form in cells]
            lines.append(f"{engine:<22}" + "".join(f"{text:>15}" for text in texts))
    if any(head == "best chunk*" for _, _, head, _ in used):
        lines += ["", "* chunks that the user chooses; for exoskel the reverse: one item a frame."]
    goals = [
        line for goal in GOALS for subject in goal.subjects if (line := goal.line(numbers, subject))
    ]
    if goals:
        lines += ["", f"{'goal':<52} {'ours':<22} {'':<10} {'measured':>10}", *goals]
    lines += grain_lines(numbers)
    return "\n".join(lines + gaps(report["runs"]))


def grain_lines(numbers: Numbers) -> list[str]:
    """Efficiency against grain, a line for each payload and protection."""
    points = [p for run in numbers.all("exoskel_grain", "grain", "points") for p in run]  # type: ignore[attr-defined]
    lines = ["", "efficiency (of what bare sleeps give) by grain"] if points else []
    for kib, protection in dict.fromkeys((p["kib"], p["protection"]) for p in points):
        mine = [p for p in points if (p["kib"], p["protection"]) == (kib, protection)]
        cells = [f"{p['grain']}: {p['efficiency']:.3f} ({p['of_bare']:.3f})" for p in mine]
        lines.append(
            f"{kib:>5} KiB {protection:<10} T {mine[0]['round_trip_us']:,.0f} us  "
            + "  ".join(cells)
        )
    return lines


def gaps(runs: list[dict[str, Any]]) -> list[str]:
    """Why a cell is empty."""
    lines = []
    for run in runs:
        values = run["values"]
        if "skipped" in values:
            lines.append(f"{run['engine']} {run['part']}: not run, {values['skipped']}")
        if "failed" in values:
            last = (values["failed"].splitlines() or ["no output"])[-1]
            lines.append(f"{run['engine']} {run['part']}: FAILED, {last}")
        if values.get("hung"):
            lines.append(f"{run['engine']} {run['part']}: waits for ever for what died")
        if values.get("errors"):
            lines.append(f"{run['engine']} {run['part']}: raised {values['errors']}")
    return ["", *dict.fromkeys(lines)] if lines else []
