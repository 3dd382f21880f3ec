"""Streams over programs that the engine doesn't run as they are: what slots answer becomes what the user gets."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, TypeAlias

from .errors import ResultRejectedError
from .outcome import add_item_note, hide_number, rename_item
from .patterns import Map, Reduce
from .plans import Plan
from .sequential import parts_of
from .short_text import describe_subject
from .slices import Partials, Slices, is_sliceable, items_text
from .slot_stages import SlotStages

if TYPE_CHECKING:
    from .runs import Closable

__all__ = ["AS_COMPLETED", "FEW_ITEMS", "PlanStream", "answer_of_slice", "is_few", "open_plan"]

# A program that is a `Map`, over so many items for each slot or fewer, is split and joined by the manager.
FEW_ITEMS = 4

# How outcomes are wanted; see `crates/py/src/stream.rs`.
Form: TypeAlias = dict[str, bool]
# Opens a stream of the engine: over what, in which form, and of which function if not of the plan's.
Open: TypeAlias = "Callable[..., Closable]"
# Whether it is an exception, and what it is.
Outcome: TypeAlias = tuple[bool, Any]

# As outcomes are wanted whose order their numbers say.
AS_COMPLETED: Form = {"as_completed": True, "indices": True, "return_errors": True}


class PlanStream:
    """An iterator over outcomes. Several threads may iterate over it; `close` ends it.

    Parameters
    ----------
    outcomes : generator
        The outcomes.
    stream : _core.MapStream
        The engine's stream, on which the outcomes wait.
    """

    def __init__(self, outcomes: Generator[Any, None, None], stream: Any) -> None:
        self._outcomes = outcomes
        self._stream = stream
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        with self._lock:
            return next(self._outcomes)

    def close(self) -> None:
        """End the stream: who waits for an outcome hears that there are no more."""
        self._stream.close()
        if self._lock.acquire(blocking=False):
            try:
                self._outcomes.close()
            finally:
                self._lock.release()


class UnnumberedStream(PlanStream):
    """An iterator over the outcomes of the engine's stream, of which an item may have any number."""

    def show(self, bar: Any) -> None:
        """Have the engine's stream show how far it is."""
        self._stream.show(bar)


def open_plan(
    plan: Plan,
    items: Iterable[Any],
    form: Form,
    slots: int,
    is_single: bool,
    progress: bool | None,
    opened: Open,
) -> Closable:
    """Open a stream of a program.

    Parameters
    ----------
    plan : Plan
        The plan.
    items : iterable
        The items.
    form : dict
        How outcomes are wanted.
    slots : int
        How many slots work.
    is_single : bool
        Whether each item travels by itself: an item may run for some time only, or a contract asks for so many items a second.
    progress : bool, optional
        Whether to show how far a reduction is, as `Manager.map` takes it.
    opened : callable
        Opens a stream of the engine.

    Returns
    -------
    iterator
        The outcomes, with a ``close``.
    """
    reduction, slice_fold = plan.reduction, plan.slice_fold
    # What has parts spreads by them if items are few.
    is_spread = plan.has_parts and is_few(items, slots)
    is_cut = is_sliceable(items) and not is_single and not is_spread
    if slice_fold is not None and reduction is not None and is_cut:
        slices = Slices(items, slots)
        stream = opened(iter(slices), AS_COMPLETED, slice_fold)
        answers: Iterable[Any] = stream
        if progress is not False:
            from .progress import track_if

            answers = track_if(
                progress, stream, slices.length, weigh=lambda answer: slices.size(answer[0])
            )
        values = _of_slices(reduction, slices, stream, iter(answers))
        return PlanStream(_formed(enumerate(values), form), stream)
    if plan.split is not None and is_few(items, slots):
        parts = _Parts(plan.split, iter(items), form["as_completed"])
        stream = opened(parts.handed_out(), AS_COMPLETED, SlotStages(plan.split.worker))
        return PlanStream(_formed(parts.joined(stream), form), stream)
    if progress is not False and reduction is not None:
        from .progress import track_if

        # What is read of the items is all that can be seen.
        items = track_if(progress, items, len(items) if isinstance(items, Sized) else None)
    stream = opened(items, form)
    return UnnumberedStream(_unnumbered(stream, form), stream) if plan.gives_many else stream


def _unnumbered(stream: Closable, form: Form) -> Generator[Any, None, None]:
    """Iterate over outcomes of the engine that are not those of an item each."""
    try:
        for outcome in stream:
            error = outcome[1] if form["indices"] else outcome
            if form["return_errors"] and isinstance(error, Exception):
                hide_number(error)
            yield outcome
    except Exception as error:
        hide_number(error)
        raise


def is_few(items: Iterable[Any], slots: int) -> bool:
    """Say whether there are so few items that slots would have nothing to do if each ran on one.

    Parameters
    ----------
    items : iterable
        The items.
    slots : int
        How many slots there are.

    Returns
    -------
    bool
        Whether there are.
    """
    try:
        return len(items) <= FEW_ITEMS * slots  # type: ignore[arg-type]  # what has no length has none
    except TypeError:
        return False


def _formed(outcomes: Iterable[tuple[int, Outcome]], form: Form) -> Generator[Any, None, None]:
    for index, (is_error, value) in outcomes:
        if is_error and not form["return_errors"]:
            raise value
        yield (index, value) if form["indices"] else value


def _checked_list(answer: list[Any]) -> list[Any]:
    # It comes from a worker, who may say anything.
    if type(answer) is not list:
        raise ResultRejectedError(
            f"got {type(answer).__name__} from a worker, expected the list that its part of the program gives"
        )
    checked: list[Any] = answer
    return checked


def _of_slices(
    reduction: Reduce[Any, Any], slices: Slices, stream: Closable, answers: Iterator[Any]
) -> Iterator[Outcome]:
    """Fold what slices at slots have folded to."""
    partials = Partials(reduction.merge)
    for number, answer in answers:
        start, size, folded = answer_of_slice(slices, number, answer)
        if isinstance(folded, Exception):
            stream.close()
            yield True, folded
            return
        began = time.perf_counter()
        try:
            partials.add(start, size, folded)
        except Exception as error:
            stream.close()
            yield True, error
            return
        slices.folded(time.perf_counter() - began)
    # Whoever has closed the stream wants no part of a result.
    if slices.are_over:
        yield _outcome(reduction, partials.whole())


def answer_of_slice(
    slices: Slices, number: int, answer: Any
) -> tuple[int, int, list[Any] | Exception]:
    """Take the answer for a slice.

    Parameters
    ----------
    slices : Slices
        The slices.
    number : int
        Which one it is.
    answer : object
        What came from a slot.

    Returns
    -------
    tuple of int, int, and list or Exception
        The first item, how many there are, and what they have folded to: a list of one, or an empty one; or an exception.
    """
    start, size = slices.place(number)
    if isinstance(answer, Exception):
        rename_item(answer, number, items_text(start, size), is_slice=True)
        return start, size, answer
    seconds, *folded = _checked_fold(answer)
    slices.measured(size, seconds)
    return start, size, folded


def _checked_fold(answer: Any) -> list[Any]:
    fold = _checked_list(answer)
    if len(fold) not in (1, 2) or type(fold[0]) is not float:
        raise ResultRejectedError(
            "got a list of another form from a worker, expected what a slice of the items folds to"
        )
    return fold


def _outcome(reduction: Reduce[Any, Any], folded: list[Any]) -> Outcome:
    try:
        return False, reduction.result_of(folded)
    except Exception as error:
        return True, error


class _Item:
    """An item of a `Map` whose parts are under way."""

    def __init__(self) -> None:
        # By the place of the part; None as long as there is none.
        self.results: list[list[Any] | None] = []
        self.missing = 0
        self.is_split = False
        self.error: Exception | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it has an outcome."""
        return self.error is not None or (self.is_split and not self.missing)


class _Parts:
    """Splits items, and joins the results of their parts."""

    def __init__(self, split: Map[Any, Any], items: Iterator[Any], as_completed: bool) -> None:
        self._map = split
        self._items = items
        self._as_completed = as_completed
        # By index, until they have their turn; and whose part each of those under way is.
        self._open: dict[int, _Item] = {}
        self._owners: dict[int, tuple[int, int]] = {}
        self._next = 0
        self._is_over = False

    def handed_out(self) -> Iterator[Any]:
        """Iterate over the parts of all items."""
        number = 0
        for index, item in enumerate(self._items):
            opened = self._open[index] = _Item()
            try:
                parts = parts_of(item, self._map.split)
            except Exception as error:
                add_item_note(error, index, describe_subject("item", item, None))
                opened.error = error
                continue
            opened.results = [None] * len(parts)
            opened.missing = len(parts)
            opened.is_split = True
            for place, part in enumerate(parts):
                self._owners[number] = index, place
                number += 1
                yield part
        self._is_over = True

    def joined(self, stream: Any) -> Iterator[tuple[int, Outcome]]:
        """Iterate over the outcomes of the items, with their indexes."""
        for number, answer in stream:
            index, place = self._owners.pop(number)
            item = self._open.get(index)
            # Of an item that has its exception nothing else counts.
            if item is None:
                continue
            if isinstance(answer, Exception):
                rename_item(answer, number, f"item {index}, part {place}")
                item.error = item.error or answer
            else:
                item.results[place] = _checked_list(answer)
                item.missing -= 1
            yield from self._ready()
        if self._is_over and not self._owners:
            yield from self._ready()

    def _ready(self) -> Iterator[tuple[int, Outcome]]:
        """Iterate over the outcomes that have their turn."""
        for index in sorted(self._open) if self._as_completed else itertools.count(self._next):
            item = self._open.get(index)
            if item is None or not item.is_ready:
                if self._as_completed:
                    continue
                return
            del self._open[index]
            self._next = index + 1
            yield index, self._outcome(item, index)

    def _outcome(self, item: _Item, index: int) -> Outcome:
        if item.error is not None:
            return True, item.error
        results = [result for results in item.results for result in results or ()]
        if self._map.join is None:
            return False, results
        try:
            return False, self._map.join(results)
        except Exception as error:
            add_item_note(error, index)
            return True, error
