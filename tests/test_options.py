"""Options: declared once, and the same wherever they are given."""

import inspect
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.site import Site

import exoskel as ex
from exoskel import options
from exoskel.options import ManagerOptions, WorkerOptions, checked


@pytest.mark.parametrize("of", [ex.Manager, ex.Executor, ex.Pool])
def test_signature_and_docstring_name_every_option(of: type) -> None:
    parameters = inspect.signature(of).parameters
    for name, option in options.declared(ManagerOptions).items():
        assert parameters[name].default == option.default
        # A pool takes these two where that of the standard library does.
        of_library = of is ex.Pool and name in ("initializer", "initargs")
        assert (parameters[name].kind is inspect.Parameter.KEYWORD_ONLY) != of_library
        assert (of.__doc__ or "").count(f"    {name} : {option.kind}\n") == 1
    assert "options" not in parameters


def test_a_subclass_with_a_signature_of_its_own_keeps_it() -> None:
    class Mine(ex.Manager):
        def __init__(self, slots: int) -> None:
            super().__init__(abs, ex.ParDegree(slots))

    assert list(inspect.signature(Mine).parameters) == ["slots"]


def test_what_is_checked_is_complete_and_can_t_change() -> None:
    values = checked(ManagerOptions, "Manager", {"policy": Path(os.devnull), "retries": 5})
    assert values["policy"] == os.devnull
    assert values["retries"] == 5
    assert values["trust_interval"] == 60
    assert set(values) == set(options.declared(ManagerOptions))
    with pytest.raises(TypeError):
        values["retries"] = 1  # type: ignore[index]


def manager(**given: Any) -> ex.Manager:
    return ex.Manager(abs, ex.ParDegree(1), **given)


def executor(**given: Any) -> ex.Executor:
    return ex.Executor(1, **given)


@pytest.mark.parametrize("make", [manager, executor])
@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"worker": "here:7601"}, TypeError, "unexpected option 'worker'; there is 'workers'"),
        ({"retries": 0}, ValueError, "got retries=0, expected a whole number of at least 1"),
        ({"retries": True}, ValueError, "got retries=True"),
        ({"retries": 256}, ValueError, "at least 1 and at most 255"),
        ({"dead_after": 0}, ValueError, "got dead_after=0, expected seconds above 0"),
        ({"dead_after": float("nan")}, ValueError, "got dead_after=nan"),
        ({"connect_timeout": "soon"}, ValueError, "got connect_timeout='soon'"),
        ({"retries": "3"}, ValueError, "got retries='3', expected a whole number"),
        ({"dead_after": "5"}, ValueError, "got dead_after='5', expected seconds above 0"),
        ({"message_bytes_max": 1}, ValueError, "at least 262144"),
        ({"message_bytes_max": 1 << 49}, ValueError, "at most 281474976710656"),
        (
            {"transport": "udp"},
            ValueError,
            'transport: got "udp", expected "socketpair", "tcp" or "shared memory"',
        ),
        ({"protection": 3}, ValueError, 'protection: got 3, expected "plain", "integrity" or'),
        ({"listen": 7600}, TypeError, "got listen=7600, expected text"),
        ({"credential": 3.5}, TypeError, "got credential=3.5, expected a path"),
        ({"policy": "/nowhere/policy.toml"}, FileNotFoundError, "/nowhere/policy.toml"),
    ],
)
def test_what_makes_no_sense_is_told_by_name(
    make: Callable[..., Any], given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        make(**given)
    assert text in str(caught.value)


def test_every_option_of_a_node_is_one_of_the_worker_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from exoskel.cli import main

    with pytest.raises(SystemExit):
        main(["worker", "--help"])
    shown = capsys.readouterr().out
    for name in options.declared(WorkerOptions):
        assert f"--{name.replace('_', '-')} " in shown


def test_options_become_words_of_a_command_and_options_again(tmp_path: Path) -> None:
    import argparse

    parser = argparse.ArgumentParser()
    options.add_arguments(parser, WorkerOptions)
    words = ["--dead-after", "2.5", "--policy", str(tmp_path / "policy.toml")]
    found = options.given(WorkerOptions, parser.parse_args(words))
    assert found == {"policy": str(tmp_path / "policy.toml"), "dead_after": 2.5}
    assert options.as_command_line(found) == words


def test_what_a_child_is_told_can_t_be_changed() -> None:
    descriptor = options.sealed(pickle.dumps({"slots": 3}))
    try:
        assert pickle.loads(os.pread(descriptor, 4096, 0)) == {"slots": 3}
        with pytest.raises(PermissionError):
            os.pwrite(descriptor, b"x", 0)
    finally:
        os.close(descriptor)


def large(count: int) -> bytes:
    return bytes(count)


def test_executors_take_what_managers_take() -> None:
    with ex.Executor(1, message_bytes_max=1 << 20, frame_items_max=1) as pool:
        assert len(pool.submit(large, 1 << 19).result()) == 1 << 19
        with pytest.raises(ex.SizeLimitError, match="message_bytes_max"):
            pool.submit(large, 1 << 21).result()


def test_a_worker_s_own_limit_counts_where_it_is_the_smaller_one(site: Site) -> None:
    worker = site.worker("here", "--message-bytes-max", str(1 << 20))
    with site.connect(ex.Farm(large), 1, worker) as manager:
        results = list(manager.map([1 << 19, 1 << 21, 3], errors="return"))
    assert [len(results[0]), len(results[2])] == [1 << 19, 3]
    assert isinstance(results[1], ex.SizeLimitError)
    # The script has set no limit.
    assert f"The limit is {1 << 20} bytes a message" in str(results[1])
    assert "its worker's (--message-bytes-max)" in str(results[1])


@pytest.mark.parametrize("stage", [ex.Farm, ex.Seq])
def test_an_item_that_the_worker_doesn_t_take_fails_alone(
    site: Site, stage: Callable[..., Any]
) -> None:
    worker = site.worker("here", "--message-bytes-max", str(1 << 18))
    program = ex.Pipeline(stage(len), abs)
    with site.connect(program, 1, worker) as manager:
        items = [bytes(9), bytes(1 << 19), bytes(8)] * 3
        results = list(manager.map(items, errors="return"))
        assert [report.state for report in manager.summary().workers] == ["working"]
    assert [result for result in results if isinstance(result, int)] == [9, 8] * 3
    for error in results[1::3]:
        assert isinstance(error, ex.SizeLimitError)
        assert "--message-bytes-max" in str(error)


def test_items_travel_in_messages_that_the_worker_takes(site: Site) -> None:
    worker = site.worker("here", "--message-bytes-max", str(1 << 18))
    with site.connect(ex.Farm(len), 1, worker) as manager:
        assert list(manager.map([bytes(3000)] * 2000)) == [3000] * 2000
        assert [report.state for report in manager.summary().workers] == ["working"]
