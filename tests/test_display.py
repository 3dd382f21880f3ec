"""What is seen of managers, executors and streams: printed, and in a notebook."""

import io
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from tests.processes import eventually

import exoskel as ex
from exoskel.progress import track
from exoskel.summary import Summary, WorkerSummary


class Page(HTMLParser):
    """What a browser makes of HTML: its text, and the elements that it has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text = ""
        self.elements: set[str] = set()
        self.feed(html)
        self.close()

    def handle_data(self, data: str) -> None:
        """Take text."""
        self.text += data

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take the head of an element."""
        del attrs
        self.elements.add(tag)


def page_of(shown: Any) -> Page:
    return Page(shown._repr_html_())


def test_a_manager_says_what_it_is() -> None:
    with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
        assert repr(manager) == (
            "<exoskel.Manager of Farm(abs): 2 of 2 slots of 2 workers, 0 results so far>"
        )
        assert list(manager.map([-1])) == [1]
        assert "1 result so far" in str(manager)
        page = page_of(manager)
        assert repr(manager) in page.text
        assert "local-1" in page.text
        assert page.elements <= {"p", "pre", "span"}
    assert repr(manager) == "<exoskel.Manager of Farm(abs): closed>"
    assert "closed" in page_of(manager).text


def test_an_executor_says_what_it_is() -> None:
    with ex.Executor(1) as executor:
        future = executor.submit(abs, -1)
        assert "1 of 1 slots of 1 worker" in repr(executor)
        assert future.result() == 1
        # The future has its outcome before the executor has forgotten it.
        assert eventually(lambda: "0 calls pending" in repr(executor))
        assert "local-1" in page_of(executor).text
    assert repr(executor) == "<exoskel.Executor: shut down>"


def test_a_stranger_s_text_is_no_markup() -> None:
    name = "<script>alert(1)</script>[red]"
    summary = Summary([WorkerSummary(name, state="working", set_aside=f"sent {name}")])
    page = page_of(summary)
    assert name in page.text
    assert f"sent {name}" in page.text
    assert page.elements <= {"p", "pre", "span"}


class Notebook:
    """The part of IPython that a bar uses."""

    def __init__(self) -> None:
        self.outputs: list[str] = []

    def display(self, shown: Any, display_id: bool = False) -> "Notebook":
        """Put something below the cell."""
        assert display_id
        self.outputs.append(shown._repr_html_())
        return self

    def update(self, shown: Any) -> None:
        """Put something in its place."""
        self.outputs[-1] = shown._repr_html_()


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    """Make this process look like the kernel of a notebook."""
    made = Notebook()
    ipython = types.ModuleType("IPython")
    # By the name of its class, rich finds out that it is in a notebook.
    shell = type("ZMQInteractiveShell", (), {"kernel": object()})()
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]
    monkeypatch.setattr("builtins.get_ipython", lambda: shell, raising=False)
    display = types.ModuleType("IPython.display")
    display.display = made.display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return made


def test_progress_in_a_notebook_is_one_output_of_the_cell(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    assert list(track(range(3), 3, "images")) == [0, 1, 2]
    (shown,) = notebook.outputs
    page = Page(shown)
    assert "images" in page.text
    assert "3/3" in page.text
    assert capsys.readouterr() == ("", "")


class Interrupted(map):  # type: ignore[type-arg]
    """A stream in C, which no frame of its own keeps."""


def interrupt(_item: int) -> int:
    raise KeyboardInterrupt


def test_a_traceback_that_a_notebook_keeps_does_not_keep_the_stream(notebook: Notebook) -> None:
    stream = Interrupted(interrupt, [1])
    gone = weakref.ref(stream)
    tracked = [track(stream, 1, "images")]
    del stream
    with pytest.raises(KeyboardInterrupt) as kept:
        # Nothing but this call holds it.
        list(tracked.pop())
    assert kept.tb is not None
    assert len(notebook.outputs) == 1
    assert gone() is None


class Broken(io.StringIO):
    """A stream that takes nothing: a full disk, or a pipe that nobody reads."""

    def write(self, text: str) -> int:
        """Refuse text."""
        raise BrokenPipeError(f"nobody reads {len(text)} characters")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_progress_that_can_t_be_shown_costs_no_result(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    broken = Broken()
    monkeypatch.setattr(broken, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", broken)
    monkeypatch.setenv("TERM", "xterm")
    with ex.Manager(ex.Farm(abs), ex.ParDegree(1)) as manager:
        assert list(manager.map(range(200), progress=True)) == list(range(200))


def left_early(stream: Iterator[int]) -> None:
    for item in stream:
        if item == 3:
            break


@pytest.mark.parametrize("leave", [left_early, lambda stream: stream.close()])
def test_a_bar_goes_with_its_stream(
    monkeypatch: pytest.MonkeyPatch, leave: Callable[[Iterator[int]], None]
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with ex.Manager(ex.Farm(abs), ex.ParDegree(1)) as manager:
        stream = manager.map(range(10), progress=True)
        assert next(stream) == 0
        leave(stream)
        del stream
        # Shown again is the cursor, which a bar hides while it is there.
        assert terminal.getvalue().rstrip().endswith("\x1b[?25h")


@pytest.mark.parametrize(
    ("is_terminal", "progress", "is_shown"),
    [(True, None, True), (True, False, False), (False, None, False)],
)
def test_a_long_stream_has_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, is_terminal: bool, progress: bool | None, is_shown: bool
) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: is_terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("exoskel.progress.PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr("exoskel.progress._BAR_SECONDS", 0.0)
    with ex.Manager(ex.Farm(abs), ex.ParDegree(1)) as manager:
        assert list(manager.map(range(100), progress=progress)) == list(range(100))
        whole = terminal.getvalue()
        assert ("100/100" in whole) == is_shown
        stream = manager.map(itertools.count(), progress=progress)
        left_early(stream)
        del stream
    shown = terminal.getvalue()[len(whole) :]
    assert not shown or shown.rstrip().endswith("\x1b[?25h")


def test_a_short_stream_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr("exoskel.progress.PATIENCE_SECONDS", 3600.0)
    with ex.Manager(ex.Farm(abs), ex.ParDegree(1)) as manager:
        assert list(manager.map(range(100))) == list(range(100))
    assert not terminal.getvalue()
