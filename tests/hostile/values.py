"""What a worker answers instead of a value: programs, garbage, and values that are hard to bear."""

from __future__ import annotations

import pickle

from tests.hostile.behaviour import Canary, HostileWorker, failed, on_execute
from tests.independent_worker import Frame, encode_record


def answer_all(
    worker: HostileWorker, frame: Frame, record: bytes, bulk: list[bytes] | None = None
) -> None:
    """Answer each item of a frame with this record."""
    for position in range(frame.count):
        worker.results(frame.number, frame.first + position, 1, [record], bulk)


@on_execute("answers a program", failed("ResultRejectedError"))
def program(worker: HostileWorker, frame: Frame) -> None:
    answer_all(worker, frame, encode_record(Canary(worker.scene.canary).pickle()))


@on_execute("raises a program", failed("TaskError"))
def program_as_an_exception(worker: HostileWorker, frame: Frame) -> None:
    body = pickle.dumps((Canary(worker.scene.canary).pickle(), "ValueError: x", "lines"), 5)
    answer_all(worker, frame, encode_record(body, True))


@on_execute("raises a program that stands where the exception's parts do", failed("TaskError"))
def program_around_an_exception(worker: HostileWorker, frame: Frame) -> None:
    body = pickle.dumps(("x", Canary(worker.scene.canary), "lines"), 5)
    answer_all(worker, frame, encode_record(body, True))


@on_execute("raises noise", failed("TaskError", "can't be read"))
def exception_of_noise(worker: HostileWorker, frame: Frame) -> None:
    answer_all(worker, frame, encode_record(b"\xff\xfe\xfd", True))


@on_execute("answers noise", failed("ResultRejectedError"))
def value_of_noise(worker: HostileWorker, frame: Frame) -> None:
    answer_all(worker, frame, encode_record(b"\xff\xfe\xfd"))


@on_execute("answers nothing at all", failed("ResultRejectedError"))
def empty_value(worker: HostileWorker, frame: Frame) -> None:
    answer_all(worker, frame, encode_record(b""))
