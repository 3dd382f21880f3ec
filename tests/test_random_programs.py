"""Random programs of all patterns: what they mean, how they are taken apart for slots, and the same on real ones."""

from __future__ import annotations

import os
import pickle
import random
import signal
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.random_programs import Program, items_of, programs

import exoskel as ex
from exoskel.folds import fold, with_initial
from exoskel.outcome import add_item_note
from exoskel.plan_streams import open_plan
from exoskel.plans import plan_of
from exoskel.sequential import begun, split_reduction
from exoskel.short_text import describe_subject
from exoskel.skeletons import Structure

SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
PLAIN = {"as_completed": False, "indices": False, "return_errors": False}


def meaning(program: Program, items: Any) -> list[Any] | str:
    """The results of a program, or the text of the exception that ends it."""
    try:
        return list(program.run_sequential(items))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


class PretendedStream:
    """What the engine does, in this process: in any order, with copies of functions, items and results."""

    def __init__(
        self,
        structure: Structure,
        functions: list[Any],
        items: Iterator[Any],
        form: dict[str, bool],
        chance: random.Random,
    ) -> None:
        structure, self._reduction = split_reduction(structure)
        self._functions = functions
        self._before, self._results = begun(structure, functions)
        # What carries a state has items in their order.
        self._is_ordered = {"stateful", "scan"} & set(_kinds(structure))
        self._items = enumerate(items)
        self._form = form
        self._chance = chance
        self._inside: list[tuple[int, Any]] = []
        self._outcomes = self._all_folded() if self._reduction else self._each()

    def __iter__(self) -> PretendedStream:
        return self

    def __next__(self) -> Any:
        return next(self._outcomes)

    def _each(self) -> Iterator[Any]:
        for result in self._before:
            yield pickle.loads(pickle.dumps(result))
        while True:
            for _ in range(self._chance.randrange(1, 4)):
                self._inside += [numbered for numbered in [next(self._items, None)] if numbered]
            if not self._inside:
                return
            is_free = self._form["as_completed"] and not self._is_ordered
            place = self._chance.randrange(len(self._inside)) if is_free else 0
            index, item = self._inside.pop(place)
            try:
                results = list(self._results(pickle.loads(pickle.dumps(item))))
            except Exception as error:
                add_item_note(error, index, describe_subject("item", item, None))
                if not self._form["return_errors"]:
                    raise
                results = [error]
            for result in results:
                copied = pickle.loads(pickle.dumps(result))
                yield (index, copied) if self._form["indices"] else copied

    def _all_folded(self) -> Iterator[Any]:
        assert self._reduction is not None
        _, operation, has_initial, initial = self._reduction
        function = self._functions[operation]
        folded = fold(function, self._each())
        first = self._functions[initial] if has_initial else None
        yield with_initial(function, has_initial, first, folded)

    def close(self) -> None:
        """Give no more."""
        self._outcomes = iter(())


def _kinds(structure: Structure) -> Iterator[str]:
    yield structure[0]
    for part in structure[1:]:
        for inner in part if structure[0] == "pipeline" else [part]:
            if isinstance(inner, tuple):
                yield from _kinds(inner)


def on_a_pretended_engine(program: Program, items: Any, chance: random.Random) -> list[Any] | str:
    plan = plan_of(program)

    def opened(items: Any, form: dict[str, bool], function: Any = None) -> PretendedStream:
        structure, functions = plan.structure, plan.functions
        if function is not None:
            structure, functions = ("farm", ("seq", 0)), [function]
        copied = [pickle.loads(pickle.dumps(function)) for function in functions]
        return PretendedStream(structure, copied, iter(items), form, chance)

    try:
        return list(open_plan(plan, items, PLAIN, chance.randrange(1, 4), False, False, opened))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@SETTINGS
@given(st.data())
def test_stages_in_a_row_are_stages_of_results(data: st.DataObject) -> None:
    kind, first = data.draw(programs(False))
    _, second = data.draw(programs(False))
    items = data.draw(items_of(kind))
    between = meaning(first, items)
    if isinstance(between, list):
        # Whether the second one takes these or not.
        assert meaning(ex.Pipeline(first, second), items) == meaning(second, between)
    kind, first = data.draw(programs(False, ordered=False))
    items = data.draw(items_of(kind))
    between = meaning(first, items)
    if isinstance(between, list):
        assert meaning(ex.Farm(first), items) == between
        assert meaning(ex.Map(None, first), [items]) == [between]


@SETTINGS
@given(st.data())
def test_a_reduction_is_that_of_the_results(data: st.DataObject) -> None:
    kind, program = data.draw(programs(True))
    items = data.draw(items_of(kind))
    assert isinstance(program, ex.Pipeline)
    *stages, reduction = program.stages
    results = meaning(ex.Pipeline(*stages), items)
    assert isinstance(results, list)
    assert meaning(program, items) == meaning(reduction, results)


@SETTINGS
@given(st.data())
def test_programs_stay_the_same_when_they_travel(data: st.DataObject) -> None:
    kind, program = data.draw(programs())
    copied = pickle.loads(pickle.dumps(program))
    assert copied == program
    assert repr(copied) == repr(program)
    assert program.explain() == copied.explain()
    items = data.draw(items_of(kind))
    assert meaning(copied, items) == meaning(program, items)


@settings(SETTINGS, max_examples=400)
@given(st.data(), st.integers(0, 1 << 30))
def test_programs_are_taken_apart_for_slots_without_a_change(
    data: st.DataObject, seed: int
) -> None:
    kind, program = data.draw(programs())
    items = data.draw(items_of(kind))
    wanted = meaning(program, items)
    assert on_a_pretended_engine(program, items, random.Random(seed)) == wanted
    assert on_a_pretended_engine(program, iter(items), random.Random(seed)) == wanted


@settings(SETTINGS, max_examples=10)
@given(st.data())
def test_programs_do_the_same_when_slots_are_lost(data: st.DataObject) -> None:
    kind, program = data.draw(programs())
    items = data.draw(items_of(kind, 200))
    wanted = meaning(program, items)
    with ex.Manager(program, ex.ParDegree(2), retries=9) as manager:
        first = manager.summary().workers[0]
        try:
            results = manager.map(items)
            os.kill(first.process_ids[0], signal.SIGKILL)
            found: Any = list(results)
        except (TypeError, ValueError) as error:
            found = f"{type(error).__name__}: {error}"
        assert found == wanted


@settings(SETTINGS, max_examples=25)
@given(st.data())
def test_programs_do_on_slots_what_they_do_in_sequence(data: st.DataObject) -> None:
    kind, program = data.draw(programs())
    items = data.draw(items_of(kind, 200))
    wanted = meaning(program, items)
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        for given_items in (items, iter(items)):
            try:
                found: Any = list(manager.map(given_items))
            except (TypeError, ValueError) as error:
                found = f"{type(error).__name__}: {error}"
            assert found == wanted
