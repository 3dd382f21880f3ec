"""`make paper-muskel`: the figures of "Security in skeletal systems", with ours beside.

M. Aldinucci and M. Danelutto measured what SSL costs a farm of muskel on Fast Ethernet. Here hosts are network namespaces, whose lines are paced, and items
sleep where theirs computed: so 32 workers need no 32 processors. What comes out goes to ``benches/results/muskel.json`` and ``docs/paper-muskel.md``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches import figures
from benches.links.install import Missing
from benches.machine import ROOT, describe
from benches.muskel import page
from benches.muskel.wires import FAR, HOSTS, PAYLOAD_SHARE, Wires, bare_sleep, wires

RESULTS = ROOT / "benches" / "results" / "muskel.json"
SCRATCH = ROOT / "target" / "bench" / "muskel.json"
PAGE = ROOT / "docs" / "paper-muskel.md"
FIGURE = ROOT / "docs" / "figures" / "paper-muskel.png"
POLICIES = {"plain": "workers.toml", "secure": "secure.toml"}
# Lines of the manager, in bits a second; the last one is nearly what two processors carry.
LINES = {"Fast Ethernet": 100e6, "1 Gbit/s": 1e9, "10 Gbit/s": 10e9}
# Milliseconds of an item, and kilobytes there and back.
ITEMS = ((100, 10), (100, 100), (10, 1), (10, 10), (10, 100))
WORKERS = (1, 4, 8, 16, 32)
SIZES = (1_000, 10_000, 100_000, 1_000_000, 4_000_000)
GRAINS = (0.5, 1, 2, 5, 10, 20, 50, 100)
# Of 32 workers, so many are near.
NEAR = (32, 24, 16, 8, 0)
MIXED_ITEMS = ((20, 1), (50, 256))
# There and back, in milliseconds: a long line, and one around the world.
LONG, LONGER = 10, 100
# On a long line an item would take seconds with more.
LONG_GRAIN_MAX = 20
# Bytes of the items by which the grain is measured on each line.
GRAIN_LINES = {"Fast Ethernet": 100_000, f"{LONG} ms": 4096}
# Few items say little: the first ones wait for all 32 workers to be fed by one line, and the last ones end at different times.
ITEMS_OF_A_WORKER_MIN = 40


class Experiment:
    """Runs of a farm, each plain and secure in turn."""

    def __init__(self, wires: Wires, rounds: int, *, is_quick: bool) -> None:
        self.wires = wires
        self._seconds, self._rounds = (0.1, 1) if is_quick else (2.0, rounds)
        few = slice(None, 2) if is_quick else slice(None)
        self._items, self._workers, self._sizes = ITEMS[few], WORKERS[few], SIZES[few]
        self._grains, self._near = GRAINS[few], NEAR[few]

    def speed_ups(
        self, workers: int, sleep: float, size: int, rate: float | None, **more: Any
    ) -> dict[str, Any]:
        """What so many workers gain over one processor without any engine, and the bound that the manager's line sets to all engines."""
        bound = bound_of(workers, sleep, size, rate)
        count = int(self._seconds * bound / sleep)
        count = min(max(count, ITEMS_OF_A_WORKER_MIN * workers), 200_000)
        alone = bare_sleep(sleep)
        found: dict[str, list[float]] = {name: [] for name in POLICIES}
        for _ in range(self._rounds):
            for name, policy in POLICIES.items():
                run = self.wires.run(
                    workers, sleep=sleep, size=size, count=count, policy=policy, **more
                )
                if run["protections"] != [{"plain": "plain", "secure": "encrypted"}[name]]:
                    raise RuntimeError(f"{name} data were {run['protections']}")
                found[name].append(count * alone / run["seconds"])
        medians = {name: statistics.median(values) for name, values in found.items()}
        return {"workers": workers, "sleep": sleep, "size": size, "bound": bound, **medians}

    def figure_3(self) -> dict[str, Any]:
        """Speed-up by workers, time and bytes of an item, on each line."""
        lines = {}
        for line, rate in LINES.items():
            self.wires.pace(f"{rate / 1e6:.0f}mbit")
            lines[line] = [
                self.speed_ups(workers, milliseconds / 1000, kilobytes * 1000, rate)
                for milliseconds, kilobytes in self._items
                for workers in self._workers
            ]
            say(f"figure 3: {line}")
        return lines

    def figure_4_left(self) -> dict[str, Any]:
        """Bytes a second of one worker, there and back, with pickling."""
        lines = {}
        for line, rate in LINES.items():
            self.wires.pace(f"{rate / 1e6:.0f}mbit")
            lines[line] = []
            for size in self._sizes:
                count = int(min(max(self._seconds * min(rate / 8, 500e6) / size, 10), 100_000))
                found = {}
                for name, policy in POLICIES.items():
                    runs = [
                        self.wires.run(1, sleep=0, size=size, count=count, policy=policy)
                        for _ in range(self._rounds)
                    ]
                    seconds = statistics.median(run["seconds"] for run in runs)
                    found[name] = 2 * size * count / seconds
                lines[line].append({"size": size, **found})
        say("figure 4, left")
        return lines

    def figure_4_right(self) -> dict[str, Any]:
        """Speed-up of 32 workers by grain: an item's time over that of its way there and back, alone and in clear."""
        found = {}
        for line, size in GRAIN_LINES.items():
            rate = LINES.get(line)
            more: dict[str, Any] = {}
            if rate is None:
                self.wires.add_far(LONG / 2)
                more["on"] = [FAR]
            else:
                self.wires.pace(f"{rate / 1e6:.0f}mbit")
            runs = [
                self.wires.run(1, sleep=0, size=size, count=50, alone=True, **more)
                for _ in range(3)
            ]
            way = statistics.median(run["seconds"] for run in runs) / 50
            points = [
                {
                    "grain": grain,
                    **self.speed_ups(max(WORKERS), grain * way, size, rate, **more),
                }
                for grain in self._grains
                if rate is not None or grain <= LONG_GRAIN_MAX
            ]
            found[line] = {"size": size, "way": way, "points": points}
            say(f"figure 4, right: {line}")
        return found

    def figure_5(self) -> list[dict[str, Any]]:
        """Speed-up of a mix of workers, those near in clear, and the share that the others get."""
        self.wires.pace(f"{LINES['10 Gbit/s'] / 1e6:.0f}mbit")
        nodes = [f"node{number}" for number in range(1, HOSTS + 1)]
        slots = max(WORKERS) // HOSTS
        mixes = []
        for milliseconds, kilobytes in MIXED_ITEMS:
            sleep, size = milliseconds / 1000, kilobytes * 1000
            alone = bare_sleep(sleep)
            for near in self._near:
                local = nodes[: near // slots]
                policy = self.wires.mixed_policy(local)
                count = max(int(self._seconds * max(WORKERS) / sleep), 20 * max(WORKERS))
                runs = [
                    self.wires.run(max(WORKERS), sleep=sleep, size=size, count=count, policy=policy)
                    for _ in range(self._rounds)
                ]
                far = [
                    sum(run["shares"][f"{node}.example.org"] for node in nodes[len(local) :])
                    for run in runs
                ]
                mixes.append(
                    {
                        "sleep": sleep,
                        "size": size,
                        "near": near,
                        "speed_up": statistics.median(
                            count * alone / run["seconds"] for run in runs
                        ),
                        "far_share": statistics.median(far) / count,
                    }
                )
        say("figure 5")
        return mixes

    def long_line(self) -> list[dict[str, Any]]:
        """Speed-up of workers around the world."""
        self.wires.add_far(LONGER / 2)
        found = [
            self.speed_ups(workers, milliseconds / 1000, kilobytes * 1000, None, on=[FAR])
            for milliseconds, kilobytes in self._items
            for workers in self._workers
        ]
        say(f"{LONGER} ms there and back")
        return found


def bound_of(workers: int, sleep: float, size: int, rate: float | None) -> float:
    """The most that any engine gains: all data of a farm pass the manager's line, in each direction."""
    if rate is None:
        return workers
    return min(workers, sleep * rate / 8 * PAYLOAD_SHARE / size)


def main() -> int:
    """Measure, write data, page and picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", action="append", help="one of the figures; all of them")
    parser.add_argument(
        "--quick", action="store_true", help="a minute instead of many; says little"
    )
    arguments = parser.parse_args()
    target = SCRATCH if arguments.quick else RESULTS
    report: dict[str, Any] = {}
    if arguments.part and target.exists():
        report = json.loads(target.read_text())
    try:
        with wires() as made:
            experiment = Experiment(made, arguments.rounds, is_quick=arguments.quick)
            parts: dict[str, Callable[[], Any]] = {
                "figure_3": experiment.figure_3,
                "figure_4_left": experiment.figure_4_left,
                "figure_4_right": experiment.figure_4_right,
                "figure_5": experiment.figure_5,
                "long_line": experiment.long_line,
            }
            if unknown := set(arguments.part or ()) - set(parts):
                parser.error(f"got {', '.join(unknown)}, expected {', '.join(parts)}")
            for name, measured in parts.items():
                if not arguments.part or name in arguments.part:
                    report[name] = measured()
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    report |= {"machine": describe([]), "quick": arguments.quick, "rounds": arguments.rounds}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report) + "\n")
    text_file, figure = (
        (target.with_suffix(".md"), target.with_suffix(".png"))
        if arguments.quick
        else (PAGE, FIGURE)
    )
    text = page.page(report)
    text_file.write_text(text)
    figures.draw("muskel.plot", target, Path(figure))
    print(text)
    return 0


def say(text: str) -> None:
    """Progress, beside the page's stream."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
