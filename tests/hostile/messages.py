"""What a worker does wrong with messages: envelopes, lengths, parts, handlers."""

from __future__ import annotations

import struct

from tests.hostile.behaviour import HostileWorker, ended, on_execute, on_ready
from tests.hostile.records import stop
from tests.task_reference import Frame

OUTPUT = 4


def envelope(
    head: int, parts: list[int], *, handler: int = OUTPUT, kind: int = 0, number: int = 0
) -> bytes:
    """Make an envelope that says anything."""
    fixed = struct.pack(">HBQQH", handler, kind, number, head, len(parts))
    return fixed + b"".join(struct.pack(">Q", part) for part in parts)


def send_head(worker: HostileWorker, body: bytes, *, end: bool = True) -> None:
    """Send a Head record of any content, and wait for what the manager says."""
    worker.session.write(worker.raw_record("head", body, end=end))
    stop(worker)


@on_execute("sends a message of 1,025 bulk parts", ended("bulk_parts_max is over its limit"))
def too_many_parts(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(1, 1025 * [1]), end=False)


@on_execute("sends a message of 1 TiB", ended("message_bytes_max is over its limit"))
def message_over_the_limit(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(1, [1 << 40]), end=False)


@on_execute("sends lengths whose sum is over 2^64", ended("message_bytes_max is over its limit"))
def lengths_that_wrap_around(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(1 << 63, [1 << 63]), end=False)


@on_execute(
    "says 1 GiB and sends ten bytes, on each link that it may open",
    ended("what is expected of it now"),
)
def claimed_memory(worker: HostileWorker, _frame: Frame) -> None:
    session = worker.session
    # The link of its results is the first of them.
    for link in range(4, 2 * session.peer_limits["links_max"] + 2, 2):
        session.control(**worker.opening(link, "exoskel.result"))
        begun = envelope(1, [(1 << 30) - 1]) + b"\0"
        session.write(session.sending.seal("head", False, link, session.group, begun))
        session.write(session.sending.seal("bulk", False, link, session.group, bytes(10)))
    stop(worker)


@on_execute("counts fewer parts than it has lengths for", ended("over its limit|first record"))
def more_lengths_than_parts(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(1, []) + bytes(8) + b"\0")


@on_execute("counts more parts than it has lengths for", ended("ends early"))
def fewer_lengths_than_parts(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, struct.pack(">HBQQH", OUTPUT, 0, 0, 1, 9) + bytes(8))


@on_execute("has more in-band bytes than its head length says", ended("in-band bytes"))
def head_longer_than_it_says(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(1, []) + b"\0line\n")


@on_execute("leaves the END flag out", ended("end flag"))
def end_missing(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(6, []) + b"\0line\n", end=False)


@on_execute("sets the END flag before the end", ended("end flag"))
def end_too_early(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(60, []) + b"\0line\n", end=True)


@on_execute(
    "sends a bulk record that is longer than its part", ended("longer than what its part misses")
)
def bulk_longer_than_its_part(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.write(worker.raw_record("head", envelope(1, [5]) + b"\0", end=False))
    worker.session.write(worker.raw_record("bulk", bytes(6)))
    stop(worker)


@on_execute("sends a bulk record before the head is whole", ended("record of another kind is due"))
def bulk_before_the_head(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.write(worker.raw_record("head", envelope(10, [5]) + b"\0", end=False))
    worker.session.write(worker.raw_record("bulk", bytes(5)))
    stop(worker)


@on_execute("goes on with a message that has not begun", ended("has not started"))
def continuation_of_nothing(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.write(worker.raw_record("bulk", bytes(5)))
    stop(worker)


@on_execute("begins a message before the last one has ended", ended("before the last one ended"))
def message_within_a_message(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.write(worker.raw_record("head", envelope(10, [5]) + b"\0", end=False))
    send_head(worker, envelope(6, []) + b"\0line\n")


@on_execute("closes a link in the middle of a message", ended("in the middle of a message"))
def link_closed_within_a_message(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.write(worker.raw_record("head", envelope(10, [5]) + b"\0", end=False))
    worker.session.control(control="link_close", link=worker.result_link)
    stop(worker)


@on_execute("sends a request instead of a post", ended("expected a post"))
def request_instead_of_a_post(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(6, [], kind=1, number=3) + b"\0line\n")


@on_execute("sends a reply on its own link", ended("fit|carr|direction"))
def reply_on_its_own_link(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(6, [], kind=2, number=3) + b"\0line\n")


@on_execute("sends a message of a kind that there isn't", ended("got 9 as message kind"))
def unknown_message_kind(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(6, [], kind=9) + b"\0line\n")


@on_execute("numbers a post", ended("request number of a post"))
def numbered_post(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(6, [], number=5) + b"\0line\n")


@on_execute("names a handler that there isn't", ended("handler|malformed result message"))
def unknown_handler(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(6, [], handler=77) + b"\0line\n")


@on_execute("sends Results without a head", ended("malformed result message"))
def results_without_a_head(worker: HostileWorker, _frame: Frame) -> None:
    send_head(worker, envelope(0, [], handler=0))


@on_ready("says Ready with 1,024 empty parts", ended("bulk parts"))
def ready_with_parts(worker: HostileWorker) -> None:
    worker.say("ready", b"", 1024 * [b""])
    worker.session.read_to_the_end()
