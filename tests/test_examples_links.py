"""The examples of links run as a reader runs them, and say what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples/links"


def said(script: str) -> str:
    """What an example says; it has to end well."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # A gateway writes its audit lines there.
    said = [line for line in done.stderr.splitlines() if " gateway " not in line]
    assert (done.returncode, said) == (0, [])
    return done.stdout


def test_two_processes() -> None:
    assert said("two_processes.py").splitlines() == [
        "heated by atmosphere.example.org",
        "(180, 360) 15.5",
        "encrypted over tcp",
    ]


def test_a_capability_is_narrowed_and_passed_on() -> None:
    lines = said("pass_it_on.py").splitlines()
    assert lines[0] == "the plotter reads the level: 0.25"
    assert lines[1].startswith("the plotter can't raise it: got the handler")
    assert lines[2].startswith("the atmosphere can't use it any more: ")
    assert "plotter.example.org" in lines[2]


def test_links_of_one_session_have_different_protections() -> None:
    lines = said("protections.py").splitlines()
    assert [line.split()[:2] for line in lines[:-1]] == [
        ["field", "plain"],
        ["steering", "integrity"],
        ["patients.totals", "encrypted"],
        ["field", "encrypted"],
        ["field", "encrypted"],
    ]
    assert lines[-1] == "5 links, 1 session"


def test_two_subnets_meet_at_a_gateway() -> None:
    lines = said("subnets.py").splitlines()
    assert lines[0].startswith(("two networks", "one network"))
    assert lines[1:] == [
        "the surface has 15.0 degrees",
        "encrypted over gateway",
        "there is no other way",
    ]
