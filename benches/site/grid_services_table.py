"""The page of `grid_services.py`: the paper's tables with ours beside, and the overload run."""

from __future__ import annotations

from typing import Any

from benches.site.servers import Subject

# "Development of Grid Services using Erlang", tables 1 and 2: requests per second.
PAPER = {
    "CWR (cowboy and ranch)": (288, 197),
    "MOCH (mochiweb)": (223, 221),
    "GTCP (generic TCP)": (399, 279),
}
DOORS = {
    "generic": "generic (`serve(handler)`)",
    "axum": "framework (tower layer, axum)",
    "front": "front, an HTTP server behind it",
}
OPEN_LOOP = {"axum": "our framework door, no cache", "gridsite": "Apache + mod_gridsite"}


def page(report: dict[str, Any]) -> str:
    """All of `docs/paper-grid-services.md`."""
    about = report["machine"]
    runs = report["runs"]
    tables = [run for run in runs if run["part"] == "tables"]
    overload = [run for run in runs if run["part"] == "overload"]
    peers = ", ".join(about["peers"])
    return "\n".join(
        [
            "# Development of Grid Services using Erlang, again",
            "",
            "E. Atanassov measured three servers that judge proxy certificates and VOMS attributes: two HTTP frameworks and a generic",
            "TCP server, all in Erlang, one request on each connection, verdicts cached and not. `make paper-grid-services` does the",
            "same with our three doors and writes this page.",
            "",
            f"Measured on {about['date']}: {about['processor']}, Linux {about['kernel']}; {peers}. The server has **one** core, the",
            "client another one. The paper's servers had twelve (two Xeon E5649, 2.53 GHz), and its clients up to eight hosts.",
            *(
                ["A quick run: it shows that everything works, not how fast."]
                if report["quick"]
                else []
            ),
            "The host key is RSA-2048, the credential a VOMS proxy with an RSA-2048 key; every answer states DN, VO and FQANs.",
            "",
            "## Tables 1 and 2: new connections, and requests, for each second",
            "",
            *siege_table(tables),
            "",
            "## Overload",
            "",
            *overload_text(),
            "",
            *overload_table(overload),
            "",
            "![Served, refused and timed out against what was offered](figures/paper-grid-services.png)",
            "",
        ]
    )


def siege_table(runs: list[dict[str, Any]]) -> list[str]:
    """The paper's and ours."""
    seconds = sorted({round(run["values"]["siege"]["seconds"] / 10) * 10 for run in runs})
    lengths = " or ".join(f"{one} s" for one in seconds) or "-"
    lines = [
        f"`siege -b -c 400` with the proxy in its siegerc, for {lengths} (the paper: 120 s). siege spends several times more CPU on a",
        "request than our servers do, so its one core is full while the server's isn't: *server core busy* says how far. The last column is a",
        "client that costs less (`crates/service/examples/load.rs`, 400 connections at once).",
        "",
        "| server | siege, cached | siege, not cached | failed | server core busy | load client, cached | not cached |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| paper: {name} | {cached} | {uncached} | - | - | - | - |"
        for name, (cached, uncached) in PAPER.items()
    ]
    for door, name in DOORS.items():
        pair = [last(runs, Subject(door, cached=cached).label) for cached in (True, False)]
        sieges = [one["siege"] if one else None for one in pair]
        rates = [f"{one['per_second']:,.0f}" if one else "-" for one in sieges]
        known = [one for one in sieges if one]
        failed = sum(one["failed"] for one in known) if known else "-"
        busy = " / ".join(
            f"{100 * one['server_cpu_seconds'] / one['seconds']:.0f} %" for one in known
        )
        loads = [
            f"{one['load']['served'] / one['load']['seconds']:,.0f}" if one else "-" for one in pair
        ]
        lines.append(
            f"| {name} | {rates[0]} | {rates[1]} | {failed} | {busy} | {loads[0]} | {loads[1]} |"
        )
    return lines


def last(runs: list[dict[str, Any]], label: str) -> dict[str, Any] | None:
    """The newest values of a server."""
    found = [run["values"] for run in runs if run["subject"] == label]
    return found[-1] if found else None


def overload_text() -> list[str]:
    """What was done, and why."""
    return [
        'The paper: "there is some limit on the number of connections that can be handled without error and after that timeouts start to',
        "occur. In most cases the client sees the timeout while it would be better to start aborting connections at the server side after",
        'certain threshold has been reached." Here connections begin at a fixed rate, whether or not earlier ones were served, from 64',
        "addresses of the loopback network; who has no answer after 10 s has timed out. Verdicts are not cached and limits are the defaults.",
        "*Refused* connections were reset at once, before any cryptography; *served* is for each second in which connections were offered or",
        "answered.",
    ]


def overload_table(runs: list[dict[str, Any]]) -> list[str]:
    """What became of what was offered."""
    lines = [
        "| server | offered /s | of capacity | served /s | served | refused | timed out | not sent | p50 of served, s | p99, s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in runs:
        values = run["values"]
        name = OPEN_LOOP[run["subject"].partition(",")[0]]
        refused = values["reset"] + values["overloaded"]
        lines.append(
            f"| {name} | {values['rate']:,} | {values['rate'] / values['capacity']:.1f} | {values['served'] / values['seconds']:,.0f}"
            f" | {values['served']:,} | {refused:,} | {values['timed_out']:,} | {values['unsent']:,}"
            f" | {values['p50_ms'] / 1e3:.2f} | {values['p99_ms'] / 1e3:.2f} |"
        )
    return lines
