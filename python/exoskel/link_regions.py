"""Arrays that others read and write in place: `links.OfferedRegion` and `links.Region`."""

from __future__ import annotations

import contextlib
import math
import re
from typing import TYPE_CHECKING, Any

from . import _core
from .link_arguments import not_expected
from .link_failures import with_reason
from .link_waiting import checked_seconds, driven, patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_KINDS = {
    **dict.fromkeys("bhilqn", "i"),
    **dict.fromkeys("BHILQN", "u"),
    **dict.fromkeys("efdg", "f"),
    "?": "b",
    "c": "S",
}
_TYPE = re.compile(r"[<>|=]?[biufcmMSUV]\d+(\[[\w/]+\])?")

# The first byte, the bytes of an element, and for each dimension how many elements and how far apart, in bytes.
_Part = tuple[int, int, list[tuple[int, int]]]


class OfferedRegion:
    """An array of this node that others read, and may write. `Endpoint.region` makes one."""

    def __init__(self, region: _core.LinkRegion, name: str, owner: object) -> None:
        self._region = region
        # The node goes on as long as somebody has this.
        self._owner = owner
        self.name = name

    @contextlib.contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[None]:
        """Keep others from reading and writing until the end of a ``with`` block. They wait, so be quick.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait at most for another thread that holds it.

        Raises
        ------
        TimeoutError
            If that didn't end in time.
        """
        if (
            patiently(checked_seconds(timeout), lambda left: self._region.hold(left) or None)
            is None
        ):
            raise TimeoutError(
                f"another thread held the region {self.name} for {timeout:g} seconds"
            )
        try:
            yield
        finally:
            self._region.release()

    def __repr__(self) -> str:
        """Say its name."""
        return f"<exoskel.links.OfferedRegion {self.name}>"


class Region:
    """An array of another node. `Binding.region` gives it."""

    def __init__(
        self,
        node: _core.LinkNode,
        binding: int,
        name: str,
        peer: str,
        reply: Callable[[_core.LinkTransfer, str, Any], Any],
        drive: Callable[[float], object] | None = None,
        timeout: float | None = None,
    ) -> None:
        self._node = node
        self._binding = binding
        self._reply = reply
        self._drive = drive
        self._timeout = timeout
        # By handler, what nobody has answered yet: the next use waits on.
        self._asked: dict[str, _core.LinkTransfer] = {}
        self._layout: tuple[str, int, tuple[int, ...]] | None = None
        self.name = name
        self.peer = peer

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements in each dimension. The first use asks the other end, and waits for the `timeout` of `Binding.region` at most."""
        return self._described()[2]

    @property
    def dtype(self) -> str:
        """The type of its elements, as NumPy writes it: ``"<f8"``. The first use asks the other end, as for `shape`."""
        return self._described()[0]

    def get(self, where: Any = (), *, into: Any = None) -> Any:
        """Read a part.

        Parameters
        ----------
        where : int, slice or tuple of these
            Which part, as in ``array[where]``. Everything, if not given.
        into : array, optional
            Where to: a C-contiguous array of the part's shape and type. A new NumPy array, if not given.

        Returns
        -------
        Reply
            Its ``result()`` is the array.

        Raises
        ------
        IndexError
            If the part lies outside.
        ValueError
            If `into` has another shape or type.
        TimeoutError
            If this is the first use, and the other end has not said in time what the array is like.
        """
        part, shape = self._part(where)
        type_text, _, _ = self._described()
        if into is None:
            import numpy as np

            into = np.empty(shape, np.dtype(type_text))
        else:
            _check_like(into, type_text, shape, "into")
        view = _bytes_of(into)
        if view.readonly:
            raise ValueError(
                "got a read-only array for `into`, expected one that can be written to"
            )
        transfer = _core.LinkTransfer.get(self._node, self._binding, self.name, part, view)
        return self._reply(transfer, f"get of {self.name}", into)

    def put(self, where: Any, array: Any) -> Any:
        """Write a part.

        Parameters
        ----------
        where : int, slice or tuple of these
            Which part, as in ``array[where] = ...``. ``()`` is everything.
        array : array
            What to write: of the part's shape and type. Don't change it before the reply is there.

        Returns
        -------
        Reply
            Its ``result()`` is None, and is there when the part has been written.

        Raises
        ------
        IndexError
            If the part lies outside.
        ValueError
            If `array` has another shape or type.
        TimeoutError
            If this is the first use, and the other end has not said in time what the array is like.
        """
        part, shape = self._part(where)
        type_text, _, _ = self._described()
        _check_like(array, type_text, shape, "array")
        view = _bytes_of(array)
        transfer = _core.LinkTransfer.put(self._node, self._binding, self.name, part, view)
        return self._reply(transfer, f"put to {self.name}", None)

    def _described(self) -> tuple[str, int, tuple[int, ...]]:
        if self._layout is None:
            try:
                self._layout = self._describe(f"{self.name}.get")
            except ValueError as error:
                # The startpoint may allow writing only.
                try:
                    self._layout = self._describe(f"{self.name}.put")
                except ValueError:
                    raise error from None
        return self._layout

    def _describe(self, handler: str) -> tuple[str, int, tuple[int, ...]]:
        transfer = self._asked.pop(handler, None)
        if transfer is None:
            transfer = _core.LinkTransfer.describe(self._node, self._binding, handler)
        if self._drive is None:
            done = patiently(self._timeout, lambda left: transfer.wait(left) or None)
        else:
            done = driven(self._drive, self._timeout, lambda: transfer.wait(0.0) or None)
        if done is None:
            self._asked[handler] = transfer
            text = f"{self.peer} has not said within {self._timeout:g} seconds what the region {self.name} is like"
            raise TimeoutError(with_reason(text, self._node.trouble(self._binding)))
        layout = transfer.layout()
        if layout is None or not _TYPE.fullmatch(layout[0]):
            raise ValueError(f"got a region {self.name} of a type that can't be read here")
        return layout[0], layout[1], tuple(layout[2])

    def _part(self, where: Any) -> tuple[_Part, tuple[int, ...]]:
        _, item_bytes, shape = self._described()
        indexes = list(where) if isinstance(where, tuple) else [where]
        if Ellipsis in [index for index in indexes if index is Ellipsis]:
            place = next(n for n, index in enumerate(indexes) if index is Ellipsis)
            missing = len(shape) - len(indexes) + 1
            indexes[place : place + 1] = [slice(None)] * max(missing, 0)
        if len(indexes) > len(shape):
            raise IndexError(
                f"got {len(indexes)} indexes for the region {self.name}, expected at most {len(shape)}"
            )
        indexes += [slice(None)] * (len(shape) - len(indexes))
        offset, steps, result = 0, [], []
        distance = item_bytes * math.prod(shape)
        for dimension, (index, length) in enumerate(zip(indexes, shape, strict=True)):
            distance //= length or 1
            if isinstance(index, slice):
                start, stop, step = index.indices(length)
                if step < 0:
                    raise IndexError(f"got the step {step}, expected one above 0")
                _check_bounds(index, length, dimension, self.name)
                count = len(range(start, stop, step))
                result.append(count)
            else:
                try:
                    start, step, count = range(length)[index], 1, 1
                except IndexError:
                    raise IndexError(
                        f"got the index {index} in dimension {dimension} of the region {self.name},"
                        f" expected {-length} to {length - 1}"
                    ) from None
                except TypeError:
                    raise IndexError(
                        f"got an index of the type {type(index).__name__}, expected an int or a slice"
                    ) from None
            if count:
                offset += start * distance
            steps.append((count, step * distance))
        return (offset, item_bytes, steps), tuple(result)

    def __repr__(self) -> str:
        """Say where it is, and what it holds, once that is known."""
        layout = "" if self._layout is None else f": {self._layout[0]} {self._layout[2]}"
        return f"<exoskel.links.Region {self.name} of {self.peer}{layout}>"


def offer(
    node: _core.LinkNode, endpoint: str, name: str, array: Any, *, writable: bool, owner: object
) -> OfferedRegion:
    """Add an array to an endpoint."""
    type_text, item_bytes, shape = layout_of(array, "array")
    view = _bytes_of(array)
    if writable and view.readonly:
        raise ValueError(
            f"got a read-only array for the region {name}, expected writable=False or one that can be written to"
        )
    region = _core.LinkRegion.offer(
        node, endpoint, name, (type_text, item_bytes, list(shape)), view, writable
    )
    return OfferedRegion(region, name, owner)


def layout_of(array: Any, name: str) -> tuple[str, int, tuple[int, ...]]:
    """Return the type, the bytes of an element, and the shape of an array."""
    dtype = getattr(array, "dtype", None)
    if dtype is not None and hasattr(dtype, "hasobject"):
        if dtype.hasobject or not _TYPE.fullmatch(dtype.str):
            raise ValueError(
                f"got an array of {dtype}, expected numbers, times, or texts of fixed length"
            )
        if not array.flags.c_contiguous:
            raise ValueError(
                "got an array that is not C-contiguous, expected one that is: numpy.ascontiguousarray makes one"
            )
        return dtype.str, int(dtype.itemsize), tuple(array.shape)
    try:
        view = memoryview(array)
    except TypeError:
        raise not_expected(name, array, "an array: numpy.asarray makes one") from None
    order, kind = (view.format[0], view.format[1:]) if len(view.format) > 1 else ("@", view.format)
    if not view.c_contiguous or kind not in _KINDS or order not in "@=<>|":
        raise ValueError(
            f"got a buffer of the format {view.format!r}, expected a contiguous one of numbers"
        )
    sign = "|" if view.itemsize == 1 else (order if order in "<>" else "<")
    return f"{sign}{_KINDS[kind]}{view.itemsize}", view.itemsize, tuple(view.shape or (1,))


def _bytes_of(array: Any) -> memoryview:
    if hasattr(array, "dtype") and hasattr(array, "reshape"):
        # A buffer can't say all types of NumPy, and a byte can.
        return memoryview(array.reshape(-1).view("u1"))
    return memoryview(array).cast("B")


def _check_like(array: Any, type_text: str, shape: tuple[int, ...], name: str) -> None:
    got_type, _, got_shape = layout_of(array, name)
    if (got_type, got_shape) != (type_text, shape):
        raise ValueError(
            f"got {name} of type {got_type} and shape {got_shape}, expected {type_text} and {shape}"
        )


def _check_bounds(index: slice, length: int, dimension: int, name: str) -> None:
    for bound in (index.start, index.stop):
        if bound is not None and not -length <= bound <= length:
            raise IndexError(
                f"got the bound {bound} in dimension {dimension} of the region {name}, expected {-length} to {length}"
            )
