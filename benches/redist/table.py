"""The table of `run.py`: goals beside what was measured, and what each lane did."""

from __future__ import annotations

from typing import Any

from benches.redist.frame import Goal, Row


def render(report: dict[str, Any]) -> str:
    """All of it as text."""
    about = report["machine"]
    lines = [
        f"{about['processor']}, {about['cores']} cores, Linux {about['kernel']}, {about['date']}",
        ", ".join(about["peers"]),
    ]
    for name, part in report["parts"].items():
        how = f"medians of {part['rounds']} rounds, {part['date']}"
        quick = ": a quick run, which says little" if part["quick"] else ""
        lines += ["", f"{name}: {how}{quick}"]
        lines += [goal(Goal(**one)) for one in part["goals"]]
        for one in part["rows"]:
            lines += row(Row(**one))
    return "\n".join(lines)


def goal(one: Goal) -> str:
    """One goal."""
    sign = ">=" if one.is_least else "<="
    value = "-" if one.value is None else f"{one.value:.3g}"
    return f"  {one.text:64}{value:>8}   goal {sign} {one.bound:g}{one.unit and ' ' + one.unit}  {one.verdict}"


def row(one: Row) -> list[str]:
    """One row, and why lanes are missing in it."""
    shown = "  ".join(f"{name} {value:.3g}" for name, value in one.values.items())
    missing = [f"    {name}: not measured: {why}" for name, why in one.failures.items()]
    return [f"  {one.text:58}{shown} {one.unit}", *missing]
