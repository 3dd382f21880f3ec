"""Each message that docs/guide/troubleshooting.md explains is one that the product makes, word for word."""

from __future__ import annotations

import functools
import os
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually
from tests.site import Site

import exoskel as ex

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guide" / "troubleshooting.md"
MESSAGES = re.findall(r"^### `(.*)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
# What a value may take up, and how far a message may go to both sides of its longest part.
FIELD_CHARACTERS_MAX = 160
REACH = 1000

# Messages of several literals, or of Python and of libraries: tests below provoke these, and all others are looked for in the sources.
PROVOKED = {
    "Manager got an unexpected option NAME; there is NAME",
    "got an unexpected option NAME; the number of slots is NAME",
    "SystemExit: CODE",
    "cannot pickle 'TYPE' object",
    "got VALUE in a program, expected a function or a skeleton",
    "got a result of N bytes, expected at most N",
    "got an item of N bytes, expected at most N",
    "got the credential of a ROLE, expected a manager's",
    "item N took down N workers while it ran alone; it is not tried again",
    "lost worker NAME (REASON); items put back: N, slots that go on: N",
    "missing 1 required positional argument",
    "no worker can be had, expected N slots",
    "no worker is left and none can be found",
    "no worker is left and none has come within SECONDS (patience)",
    "no worker within SECONDS seconds, expected N slots",
    "the answer of WORKER for ITEM can't be sent: got an instance of TYPE, expected plain data",
    "unknown field NAME, expected one of",
}

# By value: a worker has no tests. The lock is an instance of a class that the manager doesn't take.
RETURN_A_LOCK: Callable[[int], Any] = lambda _: __import__("threading").Lock()  # noqa: E731
OF_TWO: Callable[..., int] = lambda first, second: first + second  # noqa: E731


@functools.cache
def sources() -> str:
    """The sources, with literals that go over several lines on one line each."""
    joined = []
    for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        joined.append(re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")))
    for path in sorted((ROOT / "python" / "exoskel").rglob("*.py")):
        joined.append(re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")))
    # A heading in code style can't quote code.
    return "\n".join(joined).replace('\\"', '"').replace("`", "")


def is_said(message: str, said: str) -> bool:
    """Whether a text has a message of the page; words in capitals and N stand for anything on the line."""
    fixed = [part for part in re.split(r"\b[A-Z]{2,}\b|\bN\b", message) if part]
    wanted = re.compile(f"[^\n]{{1,{FIELD_CHARACTERS_MAX}}}?".join(map(re.escape, fixed)))
    # The sources are long: only around the longest part it is worth looking.
    longest = max(fixed, key=len)
    return any(
        wanted.search(said, max(0, found.start() - REACH), found.end() + REACH)
        for found in re.finditer(re.escape(longest), said)
    )


def test_messages_are_headings() -> None:
    assert len(MESSAGES) > 60
    assert len(set(MESSAGES)) == len(MESSAGES)
    assert set(MESSAGES) >= PROVOKED


@pytest.mark.parametrize("message", [text for text in MESSAGES if text not in PROVOKED])
def test_a_message_is_in_the_sources(message: str) -> None:
    assert is_said(message, sources())


class Provoked:
    """The messages that a test has provoked; every one must stand on the page."""

    def __init__(self) -> None:
        self.messages: set[str] = set()

    def by(self, kind: type[BaseException], message: str, action: Callable[[], object]) -> None:
        """Do something that fails, and compare what it says."""
        with pytest.raises(kind) as raised:
            action()
        self.are(message, str(raised.value))

    def are(self, message: str, said: str) -> None:
        """Compare a text with a message."""
        assert message in MESSAGES
        assert is_said(message, said), said
        self.messages.add(message)


def end(_item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise OSError("no model")


def test_messages_of_one_machine(site: Site) -> None:
    one, said = ex.ParDegree(1), Provoked()
    said.by(
        TypeError,
        "Manager got an unexpected option NAME; there is NAME",
        lambda: ex.Manager(abs, one, worker="hosts.txt"),  # type: ignore[call-arg]
    )
    said.by(
        TypeError,
        "got an unexpected option NAME; the number of slots is NAME",
        lambda: ex.Executor(n_workers=2),  # type: ignore[call-arg]
    )
    said.by(
        TypeError,
        "got VALUE in a program, expected a function or a skeleton",
        lambda: ex.Manager(3, one),  # type: ignore[arg-type]
    )
    remote: dict[str, Any] = {"workers": ["unix:/nowhere/worker.sock"], "wait": 0.1}
    said.by(
        ex.NoWorkerError,
        "no worker within SECONDS seconds, expected N slots",
        lambda: site.connect(abs, 2, **remote),
    )
    wrong = {**remote, "credential": site.issue("worker", "lab1")}
    said.by(
        ex.CredentialError,
        "got the credential of a ROLE, expected a manager's",
        lambda: ex.Manager(abs, one, **wrong),
    )
    site.policy.write_text("[domain.lab]\nadresses = []\n")
    said.by(
        ex.PolicyError,
        "unknown field NAME, expected one of",
        lambda: site.connect(abs, 2, **remote),
    )
    with ex.Manager(end, one, retries=2) as manager:
        said.by(
            ex.WorkerLostError,
            "item N took down N workers while it ran alone; it is not tried again",
            lambda: list(manager.map([1])),
        )
    with ex.Manager(bytes, one, message_bytes_max=1 << 20) as manager:
        # Zeros: of such an item, or so many.
        items: list[Any] = [bytes(1 << 20), 1 << 20]
        large_item, large_result = manager.map(items, errors="return")
    said.are("got an item of N bytes, expected at most N", str(large_item))
    said.are("got a result of N bytes, expected at most N", str(large_result))
    with ex.Executor(1) as executor:
        for message, call in (
            ("SystemExit: CODE", executor.submit(sys.exit, 3)),
            ("cannot pickle 'TYPE' object", executor.submit(threading.Lock)),
            ("missing 1 required positional argument", executor.submit(OF_TWO, 1)),
        ):
            said.by(Exception, message, call.result)
    with ex.Manager(abs, one, initializer=fail) as manager:
        said.by(
            ex.InitializerError,
            "no worker is left and none can be found",
            lambda: list(manager.map([1])),
        )
    assert said.messages == PROVOKED - OF_TWO_MACHINES


OF_TWO_MACHINES = {
    "lost worker NAME (REASON); items put back: N, slots that go on: N",
    "no worker can be had, expected N slots",
    "no worker is left and none has come within SECONDS (patience)",
    "the answer of WORKER for ITEM can't be sent: got an instance of TYPE, expected plain data",
}


def test_messages_of_two_machines(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    worker, said = site.worker("node1.lab.example.org"), Provoked()
    named = f"{worker.address} node2.lab.example.org"
    said.by(
        ex.NoWorkerError,
        "no worker can be had, expected N slots",
        lambda: site.connect(abs, 2, workers=[named]),
    )
    with site.connect(RETURN_A_LOCK, 1, worker, policy=None, patience=0.1) as manager:
        said.by(
            ex.ResultRejectedError,
            "the answer of WORKER for ITEM can't be sent: got an instance of TYPE, expected plain data",
            lambda: list(manager.map([1])),
        )
        worker.kill()
        said.by(
            ex.NoWorkerError,
            "no worker is left and none has come within SECONDS (patience)",
            lambda: list(manager.map([1])),
        )
    lost = "lost worker NAME (REASON); items put back: N, slots that go on: N"
    assert eventually(lambda: is_said(lost, caplog.text))
    said.are(lost, caplog.text)
    assert said.messages == OF_TWO_MACHINES
