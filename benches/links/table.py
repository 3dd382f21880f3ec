"""The table of `run.py`: ratios beside their goals, and what each lane did."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from benches.links.lanes import ratio

MEBIBYTE = 1 << 20
# How far two equal lanes may be from each other.
QUIET = 0.05
KIBIBYTES_64 = 64 << 10


@dataclass(frozen=True)
class Goal:
    """A ratio of two lanes of a contest: of speeds, which is to be high, or of times, which is to be low."""

    text: str
    part: str
    size: int
    lane: str
    beside: str
    bound: float
    is_speed: bool

    def value(self, contests: Mapping[tuple[str, int], Any]) -> float | str:
        """The ratio, or why there is none."""
        contest = contests.get((self.part, self.size))
        if contest is None:
            return "not asked for"
        if not all(contest["times"].get(lane) for lane in (self.lane, self.beside)):
            return "not measured: see below"
        mine, other = contest["times"][self.lane], contest["times"][self.beside]
        return ratio(other, mine) if self.is_speed else ratio(mine, other)

    def verdict(self, value: float) -> str:
        """Whether it is reached. Of two equal lanes: whether anything can be said."""
        if self.text.startswith("control"):
            return "quiet" if abs(value - 1) <= QUIET else "NOT QUIET: the others say little"
        reached = value >= self.bound if self.is_speed else value <= self.bound
        return "reached" if reached else "missed"


def speed(text: str, part: str, size: int, lane: str, beside: str, bound: float) -> Goal:
    """A goal for speeds."""
    return Goal(text, part, size, lane, beside, bound, is_speed=True)


def duration(text: str, part: str, size: int, lane: str, beside: str, bound: float) -> Goal:
    """A goal for times."""
    return Goal(text, part, size, lane, beside, bound, is_speed=False)


STREAMS = [
    speed("control: raw TCP / raw TCP", "stream", MEBIBYTE, "stream_raw_again", "stream_raw", 0.97),
    speed("encrypted 1 MiB / raw TCP", "stream", MEBIBYTE, "stream_encrypted", "stream_raw", 0.8),
    speed(
        "encrypted 1 MiB / rustls", "stream", MEBIBYTE, "stream_encrypted", "stream_rustls", 1.05
    ),
    speed(
        "encrypted 64 KiB / rustls",
        "stream",
        KIBIBYTES_64,
        "stream_encrypted",
        "stream_rustls",
        1.05,
    ),
    speed(
        "integrity 1 MiB / encrypted",
        "stream",
        MEBIBYTE,
        "stream_integrity",
        "stream_encrypted",
        1.0,
    ),
    speed("plain 1 MiB / raw TCP", "stream", MEBIBYTE, "stream_plain", "stream_raw", 0.97),
    speed(
        "same host, chosen method, encrypted 1 MiB / raw TCP",
        "stream",
        MEBIBYTE,
        "stream_node_chosen_encrypted",
        "stream_raw",
        2.0,
    ),
]
PINGS = [
    duration(
        "control: raw TCP / raw TCP, polling",
        "ping",
        64,
        "ping_raw_tcp_again",
        "ping_raw_tcp",
        1.03,
    ),
    duration(
        "encrypted 64 B, polling TCP / raw", "ping", 64, "ping_tcp_encrypted", "ping_raw_tcp", 1.1
    ),
    duration(
        "encrypted 64 B, polling TCP / plain MPICH over TCP",
        "ping",
        64,
        "ping_tcp_encrypted",
        "ping_mpich_tcp",
        0.9,
    ),
    duration(
        "same host, plain 64 B / Open MPI shared memory",
        "ping",
        64,
        "ping_memory_plain",
        "ping_openmpi_memory",
        1.0,
    ),
    duration(
        "same host, plain 64 B / MPICH shared memory",
        "ping",
        64,
        "ping_memory_plain",
        "ping_mpich_memory",
        1.0,
    ),
    duration(
        "same host, encrypted 64 B / plain",
        "ping",
        64,
        "ping_memory_encrypted",
        "ping_memory_plain",
        3.0,
    ),
]
REQUESTS = [
    duration(
        f"Python, {word} / {peer.replace('_', ' ')}",
        "python",
        size,
        f"python_exoskel_{mine}",
        f"python_{peer}",
        bound,
    )
    for size, word in ((64, "64 B request"), (MEBIBYTE, "1 MiB there and back"))
    for mine, peer, bound in (
        ("encrypted", "pyzmq_plain", 1.0),
        ("encrypted", "pyzmq_curve", 1.0),
        ("encrypted", "grpcio_plain", 0.5 if size == 64 else 1.0),
        ("encrypted", "grpcio_tls", 0.5 if size == 64 else 1.0),
    )
]
REQUESTS.append(
    duration(
        "passed startpoint, first answer / rustls connect",
        "connect",
        1,
        "connect_startpoint",
        "connect_rustls",
        1.2,
    )
)
GATEWAYS = [
    speed(
        "control: raw TCP over the paced hop, twice",
        "gateway paced",
        MEBIBYTE,
        "gateway_raw_again",
        "gateway_raw",
        0.97,
    ),
    *(
        speed(
            f"{word}: share of the paced hop", "gateway paced", MEBIBYTE, lane, "gateway_raw", bound
        )
        for word, lane, bound in (
            ("one gateway", "gateway_one", 0.97),
            ("two gateways", "gateway_two", 0.95),
        )
    ),
    speed(
        "one gateway, not paced / HAProxy with splice",
        "gateway",
        MEBIBYTE,
        "gateway_one",
        "gateway_haproxy",
        1.0,
    ),
    speed(
        "one gateway, not paced / raw through ssh -J",
        "gateway",
        MEBIBYTE,
        "gateway_one",
        "gateway_ssh",
        3.0,
    ),
]
ENGINE = [
    speed(
        "engine, 1 MiB there and back over TCP: encrypted / plain",
        "engine",
        MEBIBYTE,
        "engine_tcp_encrypted",
        "engine_tcp_plain",
        0.85,
    ),
    speed(
        "engine, local slots: shared memory / socketpair",
        "engine",
        MEBIBYTE,
        "engine_shared_memory_plain",
        "engine_socketpair_plain",
        1.5,
    ),
]
SECURED = {"libzmq": "curve", "nng": "tls", "tonic": "tls", "zenoh": "tls"}
PEERS = [
    goal
    for peer, secured in SECURED.items()
    for mine, theirs in (("plain", "plain"), ("encrypted", secured))
    for goal in (
        duration(
            f"node, {mine} 64 B / {peer} {theirs}",
            "peers",
            64,
            f"ping_node_tcp_{mine}",
            f"ping_{peer}_{theirs}",
            1.0,
        ),
        speed(
            f"node, {mine} 1 MiB stream / {peer} {theirs}",
            "peers",
            MEBIBYTE,
            f"stream_node_tcp_{mine}",
            f"stream_{peer}_{theirs}",
            1.0,
        ),
    )
]
GOALS = [*STREAMS, *PINGS, *REQUESTS, *GATEWAYS, *ENGINE, *PEERS]


def render(report: dict[str, Any]) -> str:
    """All of it as text."""
    about = report["machine"]
    lines = [
        f"{about['processor']}, {about['cores']} cores, Linux {about['kernel']}, {about['date']}",
        ", ".join([*about["peers"], *about["pinned"]]),
        f"medians of {report['rounds']} rounds or fewer; all ends of a part were connected at once and took turns",
        *(["a quick run: it shows that everything works, not how fast"] if report["quick"] else []),
        "",
    ]
    contests = {(one["part"], one["size"]): one for one in report["contests"]}
    parts = {part for part, _ in contests}
    lines += [f"{'ratio':58}{'measured':>9}{'goal':>9}"]
    for goal in GOALS:
        if goal.part in parts:
            lines.append(row(goal, goal.value(contests)))
    lines += unused_rows(report["unused"])
    for (part, size), contest in contests.items():
        lines += ["", f"{part}, {size} bytes"]
        for lane, times in contest["times"].items():
            lines.append(f"  {lane:40}{amount(part, lane, size, times)}")
        lines += [f"  {lane:40}not measured: {why}" for lane, why in contest["failures"].items()]
    return "\n".join(lines)


def row(goal: Goal, value: float | str) -> str:
    """One ratio beside its goal."""
    sign = ">=" if goal.is_speed else "<="
    bound = f"{sign} {goal.bound:.2f}"
    if isinstance(value, str):
        return f"{goal.text:58}{'-':>9}{bound:>9}  {value}"
    return f"{goal.text:58}{value:9.2f}{bound:>9}  {goal.verdict(value)}"


def unused_rows(counted: dict[str, Any]) -> list[str]:
    """Calls for each message of 64 bytes."""
    lines = []
    for name, values in counted.items():
        what = f"64 B by {name.replace('_', ', ')}: calls a message"
        if "failed" in values:
            lines.append(f"{what:58}not measured: {values['failed']}")
            continue
        calls = f"cipher {values['cipher']:.2f}, allocations {values['memory']:.2f}"
        goal = "  goal: 0 and 0" if name.endswith("plain") and "memory" in name else ""
        lines.append(f"{what:58}{calls}{goal}")
    return lines


def amount(part: str, lane: str, size: int, times: list[float]) -> str:
    """What a lane did, in the unit that people use for it."""
    middle = statistics.median(times)
    is_stream = lane.startswith("stream") or part.startswith(("gateway", "engine"))
    if is_stream:
        return f"{size / middle / 1e9:10.3f} GB/s"
    return f"{middle * 1e6:10.2f} us there and back"
