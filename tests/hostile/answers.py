"""What a worker answers wrong: results, grants, leases, recalls, output, what it lacks."""

from __future__ import annotations

import struct

from tests.hostile.behaviour import (
    HostileWorker,
    ended,
    harmless,
    on_execute,
    on_nothing,
    on_ready,
    stalled,
)
from tests.hostile.records import stop
from tests.task_reference import Frame, encode_record, put_number, value_record

NOISE = value_record("forged")
LARGEST = (1 << 64) - 1


@on_nothing("keeps every rule", harmless())
def good_worker(_worker: HostileWorker) -> None:
    """Nothing is done instead."""


# --- results that nobody asked for -----------------------------------------------------------------


@on_execute("answers items that it never got", harmless())
def results_of_others(worker: HostileWorker, frame: Frame) -> None:
    for index in range(frame.first + frame.count, frame.first + frame.count + 200):
        worker.results(frame.number, index, 1, [NOISE])
    for index in range(frame.first):
        worker.results(frame.number, index, 1, [NOISE])
    worker.answer(frame)


@on_execute("answers frames that it never got", harmless())
def results_of_other_frames(worker: HostileWorker, frame: Frame) -> None:
    for number in [*range(frame.number), *range(frame.number + 1, frame.number + 50), LARGEST]:
        worker.results(number, frame.first, 1, [NOISE])
    worker.answer(frame)


@on_execute("answers twice, the second time with something else", harmless())
def results_twice(worker: HostileWorker, frame: Frame) -> None:
    worker.answer(frame)
    for position in range(frame.count):
        worker.results(frame.number, frame.first + position, 1, [NOISE])


@on_execute("answers its frame and what lies around it in one message", harmless())
def results_around_its_frame(worker: HostileWorker, frame: Frame) -> None:
    worker.answer(frame)
    records = [NOISE] * (frame.count + 8)
    worker.results(frame.number, max(frame.first - 4, 0), len(records), records)


@on_execute("answers from the last of all items on", harmless())
def results_at_the_end_of_numbers(worker: HostileWorker, frame: Frame) -> None:
    worker.results(frame.number, LARGEST, 2, [NOISE, NOISE])
    worker.answer(frame)


@on_execute("sends Results of no item", harmless())
def results_of_nothing(worker: HostileWorker, frame: Frame) -> None:
    for _ in range(500):
        worker.results(frame.number, frame.first, 0, [])
    worker.answer(frame)


@on_execute("has spent 584 years on each item", harmless())
def absurd_busy_time(worker: HostileWorker, frame: Frame) -> None:
    records = worker.outcomes(frame)
    for position, record in enumerate(records):
        worker.results(frame.number, frame.first + position, 1, [record], busy=LARGEST)


@on_ready("answers before it has said Ready", harmless())
def results_before_ready(worker: HostileWorker) -> None:
    for number in range(50):
        worker.results(number, number, 1, [NOISE])
    worker.say("ready", b"")


@on_execute("has got farther than its frame goes", ended("got results for segment 2, expected 1"))
def results_from_beyond_the_frame(worker: HostileWorker, frame: Frame) -> None:
    worker.results(frame.number, frame.first, 1, [NOISE], reached=frame.end + 2)
    stop(worker)


@on_execute("gives an item back as a result", ended("got results for segment 0, expected 1"))
def results_of_no_segment(worker: HostileWorker, frame: Frame) -> None:
    worker.results(frame.number, frame.first, 1, [NOISE], reached=frame.start)
    stop(worker)


# --- records that aren't ---------------------------------------------------------------------------


def send_results(
    worker: HostileWorker,
    frame: Frame,
    count: int,
    records: bytes,
    bulk: list[bytes] | None = None,
) -> None:
    """Answer with any records, and wait for what the manager says."""
    worker.results(frame.number, frame.first, count, [records], bulk)
    stop(worker)


@on_execute("counts more items than there are records", ended("malformed item record"))
def count_beyond_the_records(worker: HostileWorker, frame: Frame) -> None:
    send_results(worker, frame, 4096, NOISE)


@on_execute("counts more items than a frame has", ended("expected at most 4096, as a frame has"))
def count_beyond_a_frame(worker: HostileWorker, frame: Frame) -> None:
    send_results(worker, frame, 0xFFFF_FFFF, NOISE)


@on_execute("counts fewer items than there are records", ended("malformed item record"))
def records_beyond_the_count(worker: HostileWorker, frame: Frame) -> None:
    send_results(worker, frame, 1, NOISE + NOISE)


@on_execute("sends noise as records", ended("malformed item record"))
def records_of_noise(worker: HostileWorker, frame: Frame) -> None:
    send_results(worker, frame, 1, b"\xff" * 30)


@on_execute("sends a record that is longer than the message", ended("longer than the message"))
def record_longer_than_the_message(worker: HostileWorker, frame: Frame) -> None:
    send_results(worker, frame, 1, put_number(1 << 40) + b"x")


@on_execute("sends a record with 65,537 splices", ended("more splices than the limit"))
def too_many_splices(worker: HostileWorker, frame: Frame) -> None:
    extra = put_number(65_537) + bytes(65_537) + put_number(0)
    send_results(worker, frame, 1, encode_record(b"", extra=extra))


@on_execute("sends a record with 2^40 buffers", ended("more buffers than the limit"))
def too_many_buffers(worker: HostileWorker, frame: Frame) -> None:
    extra = put_number(0) + put_number(1 << 40)
    send_results(worker, frame, 1, encode_record(b"", extra=extra))


@on_execute("sends data with a splice", ended("a splice in plain data"))
def splice_in_data(worker: HostileWorker, frame: Frame) -> None:
    extra = put_number(1) + put_number(900) + put_number(0)
    send_results(worker, frame, 1, encode_record(b"abc", extra=extra), [b"x"])


@on_execute("sends a pickle with a splice behind its end", ended("a splice outside"))
def splice_outside_its_record(worker: HostileWorker, frame: Frame) -> None:
    extra = put_number(1) + put_number(900) + put_number(0)
    record = encode_record(b"abc", is_data=False, extra=extra)
    send_results(worker, frame, 1, record, [b"x"])


@on_execute("sends bulk parts that no record has", ended("another number of items or bulk parts"))
def parts_without_a_record(worker: HostileWorker, frame: Frame) -> None:
    send_results(worker, frame, 1, NOISE, [b"x"] * 100)


@on_execute("sends a record whose bulk parts are missing", ended("bulk parts"))
def record_without_its_parts(worker: HostileWorker, frame: Frame) -> None:
    extra = put_number(0) + put_number(3)
    send_results(worker, frame, 1, encode_record(b"abc", extra=extra))


# --- leases and recalls ----------------------------------------------------------------------------


@on_execute("gives back a lease that it doesn't have, 500 times", harmless())
def released_without_a_lease(worker: HostileWorker, frame: Frame) -> None:
    for _ in range(500):
        worker.say("released", struct.pack(">QQ", frame.number, LARGEST))
    worker.answer(frame)


@on_execute("gives back a lease of a frame that it never got", harmless())
def released_for_no_frame(worker: HostileWorker, frame: Frame) -> None:
    worker.say("released", struct.pack(">QQ", frame.number + 500, 1))
    worker.answer(frame)


@on_execute("gives its whole frame back, unasked", harmless())
def recalled_unasked(worker: HostileWorker, frame: Frame) -> None:
    worker.say("recalled", struct.pack(">QQI", frame.number, frame.first, frame.count))


@on_execute("gives its frame back and answers it all the same", harmless())
def recalled_and_answered(worker: HostileWorker, frame: Frame) -> None:
    worker.say("recalled", struct.pack(">QQI", frame.number, frame.first, frame.count))
    for position in range(frame.count):
        worker.results(frame.number, frame.first + position, 1, [NOISE])


@on_execute("gives back more items than there are", harmless())
def recalled_too_much(worker: HostileWorker, frame: Frame) -> None:
    worker.say("recalled", struct.pack(">QQI", frame.number, LARGEST, 0xFFFF_FFFF))
    worker.say("recalled", struct.pack(">QQI", frame.number, 0, 0xFFFF_FFFF))


@on_execute("gives back what it has answered", harmless())
def recalled_after_its_answer(worker: HostileWorker, frame: Frame) -> None:
    worker.answer(frame)
    for _ in range(50):
        worker.say("recalled", struct.pack(">QQI", frame.number, frame.first, frame.count))


# --- announcements and grants ----------------------------------------------------------------------


def large(frame: Frame) -> bytes:
    """Make a record that is over its grant."""
    return value_record(b"x" * (frame.grant + 1000))


@on_execute(
    "sends a result over its grant without announcing it", ended("or an announcement first")
)
def unannounced_result(worker: HostileWorker, frame: Frame) -> None:
    send_results(worker, frame, 1, large(frame))


@on_execute(
    "sends an announced result while another one has the room", ended("that it waits for its grant")
)
def result_without_its_grant(worker: HostileWorker, frame: Frame) -> None:
    # Two of these have no room at once. The first is granted, and never comes.
    size = 600 << 20
    worker.instead["granted"] = lambda _number, _index: None

    def announce_and_send(later: Frame) -> None:
        worker.announce(later, later.first, size)
        send_results(worker, later, 1, large(later))

    worker.instead["execute"] = announce_and_send
    worker.announce(frame, frame.first, size)


def granted_and_sent(worker: HostileWorker, frame: Frame, size: int) -> None:
    """Announce a result, and send one of this size once it is granted."""
    worker.is_waiting_for_grant = True
    worker.instead["granted"] = lambda number, index: worker.results(
        number, index, 1, [value_record(b"x" * size)]
    )
    worker.announce(frame, frame.first, frame.grant + 1000)


@on_execute("sends a granted result that is larger than it announced", ended("that were announced"))
def result_larger_than_announced(worker: HostileWorker, frame: Frame) -> None:
    granted_and_sent(worker, frame, frame.grant + 2000)


@on_execute("sends 8 MiB for a small grant", ended("what is expected of it now"))
def result_far_larger_than_announced(worker: HostileWorker, frame: Frame) -> None:
    granted_and_sent(worker, frame, 8 << 20)


@on_execute("announces a result and never sends it", stalled())
def announced_and_never_sent(worker: HostileWorker, frame: Frame) -> None:
    worker.is_waiting_for_grant = True
    worker.instead["granted"] = lambda _number, _index: None
    for position in range(frame.count):
        worker.announce(frame, frame.first + position, frame.grant + 1)


@on_execute("announces a result of 2^64 bytes", ended("announced|message_bytes_max"))
def absurd_announcement(worker: HostileWorker, frame: Frame) -> None:
    worker.announce(frame, frame.first, LARGEST)
    stop(worker)


@on_execute("announces the results of others", harmless())
def announced_for_others(worker: HostileWorker, frame: Frame) -> None:
    for index in range(300):
        if not frame.first <= index < frame.first + frame.count:
            worker.announce(frame, index, 100_000)
    worker.answer(frame)


@on_execute("announces a result twice", ended("a second announcement"))
def announced_twice(worker: HostileWorker, frame: Frame) -> None:
    # The first is granted, and never comes.
    worker.instead["granted"] = lambda _number, _index: None
    for _ in range(2):
        worker.announce(frame, frame.first, frame.grant + 1)
    stop(worker)


@on_execute("announces a result that is within its grant", harmless())
def announced_within_its_grant(worker: HostileWorker, frame: Frame) -> None:
    for position, record in enumerate(worker.outcomes(frame)):
        worker.held[frame.number, frame.first + position] = record, []
        worker.announce(frame, frame.first + position, len(record))


# --- what else is said -----------------------------------------------------------------------------


@on_ready("says Ready 500 times", harmless())
def ready_again_and_again(worker: HostileWorker) -> None:
    for _ in range(500):
        worker.say("ready", b"")


def lacking(*names: str) -> bytes:
    """Make the head of a Ready that lacks these."""
    return b"".join(struct.pack(">H", len(name.encode())) + name.encode() for name in names)


@on_ready("lacks 100,000 modules", ended("malformed ready message"))
def lacks_too_much(worker: HostileWorker) -> None:
    worker.say("ready", lacking(*100_000 * ["numpy"]))
    worker.session.read_to_the_end()


@on_ready("lacks a module with terminal escapes in its name", ended("malformed ready message"))
def lacks_escapes(worker: HostileWorker) -> None:
    worker.say("ready", lacking("\x1b[2J"))
    worker.session.read_to_the_end()


@on_ready("lacks a module with a name of 60,000 bytes", ended("malformed ready message"))
def lacks_a_huge_name(worker: HostileWorker) -> None:
    worker.say("ready", lacking("a" * 60_000))
    worker.session.read_to_the_end()


@on_ready("never says Ready", harmless(wait=5.0))
def never_ready(worker: HostileWorker) -> None:
    """The manager begins with those who are."""


@on_execute("prints 60 MB", harmless())
def output_flood(worker: HostileWorker, frame: Frame) -> None:
    for _ in range(1000):
        worker.say("output", b"\0" + b"x" * 59_999 + b"\n")
    worker.answer(frame)


@on_execute("prints 200,000 lines, each in a message", harmless())
def output_of_many_lines(worker: HostileWorker, frame: Frame) -> None:
    head = b"\0" + b"\n" * 100
    for _ in range(2000):
        worker.say("output", head)
    worker.answer(frame)


@on_execute("prints terminal escapes and a forged line", harmless())
def escapes_in_the_output(worker: HostileWorker, frame: Frame) -> None:
    for text in (b"\x1b]0;owned\x07\x1b[2J\n", b"\r[node1.lab.example.org] forged\n", b"\x9b2J\n"):
        worker.say("output", b"\0" + text)
        worker.say("output", b"\1" + text)
    worker.answer(frame)


@on_execute("prints what isn't UTF-8", harmless())
def output_of_noise(worker: HostileWorker, frame: Frame) -> None:
    worker.say("output", b"\0" + bytes(range(128, 256)) + b"\n")
    worker.answer(frame)


@on_execute("prints to a stream that there isn't", ended("malformed result message"))
def output_to_no_stream(worker: HostileWorker, _frame: Frame) -> None:
    worker.say("output", b"\xc8text\n")
    stop(worker)


@on_execute("prints nothing, not even a stream", ended("malformed result message"))
def output_without_a_stream(worker: HostileWorker, _frame: Frame) -> None:
    worker.say("output", b"")
    stop(worker)
