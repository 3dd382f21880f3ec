"""Ours. The variant is ``transport-protection``: tcp-plain, tcp-encrypted, socketpair-plain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from protocol import SLOTS, Engine, Function, Program, main

import exoskel as ex


class ExoskelProgram(Program):
    """One skeleton on two local slots."""

    def __init__(self, skeleton: ex.Skeleton, options: dict[str, Any]) -> None:
        self.skeleton = skeleton
        self.options = options
        self.managers = ExitStack()
        self.by_frame: dict[int, Any] = {}
        self.manager = self.managers.enter_context(
            ex.Manager(self.skeleton, ex.ParDegree(SLOTS), **options)
        )

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Results in order; frames are the engine's business."""
        return iter(self.manager.map(items))

    def map_chunked(self, items: Sequence[Any], chunk: int) -> Iterator[Any]:
        """A manager that may put at most `chunk` items into a frame, to show what framing is worth."""
        if chunk not in self.by_frame:
            self.by_frame[chunk] = self.managers.enter_context(
                ex.Manager(
                    self.skeleton, ex.ParDegree(SLOTS), frame_items_max=chunk, **self.options
                )
            )
        return iter(self.by_frame[chunk].map(items))


class ExoskelEngine(Engine):
    """Two local slots over the wire that the variant names."""

    module = "exoskel"
    # "Chunked" is the other way round here: one item a frame, to show what framing gives.
    chunks = (1,)

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        transport, protection = variant.split("-")
        self.options = {"transport": transport, "protection": protection}

    @contextmanager
    def program(self, *stages: Function) -> Iterator[Program]:
        """Every stage a farm, so that both slots may run it, as the peers' stages are."""
        farms = [ex.Farm(stage) for stage in stages]
        with self.fresh(farms[0] if len(farms) == 1 else ex.Pipeline(*farms)) as program:
            yield program

    @contextmanager
    def serial_program(self, *stages: Function) -> Iterator[Program]:
        """The first stage in `Seq`."""
        with self.fresh(ex.Pipeline(ex.Seq(stages[0]), *stages[1:])) as program:
            yield program

    @contextmanager
    def fresh(self, skeleton: ex.Skeleton) -> Iterator[Program]:
        """A new manager with two local slots."""
        program = ExoskelProgram(skeleton, self.options)
        with program.managers:
            yield program

    @contextmanager
    def caller(self, function: Function) -> Iterator[Function]:
        """`submit` and `result`."""
        with ex.Executor(SLOTS, **self.options) as executor:
            yield lambda item: executor.submit(function, item).result()


if __name__ == "__main__":
    main(ExoskelEngine)
