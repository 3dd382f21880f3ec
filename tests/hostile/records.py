"""What a worker does wrong with records: their order, their bytes, their keys, their end."""

from __future__ import annotations

import struct

from tests.hostile.behaviour import HostileWorker, ended, harmless, on_execute, wait_for_the_end
from tests.protocol_reference import Direction
from tests.task_reference import Frame

UNVERIFIED = "does not verify"
# A silent peer is dead after this time.
SHORT = {"dead_after": 2.5}


def stop(worker: HostileWorker) -> None:
    """Let the honest worker go on, and wait for what the manager says."""
    worker.scene.struck.set()
    worker.session.read_to_the_end()


@on_execute("sends a record twice", ended(UNVERIFIED))
def replayed_record(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.write(2 * worker.raw_message())
    stop(worker)


@on_execute("sends two records in the wrong order", ended(UNVERIFIED))
def reordered_records(worker: HostileWorker, _frame: Frame) -> None:
    first, second = worker.raw_message(), worker.raw_message()
    worker.session.write(second + first)
    stop(worker)


@on_execute("leaves a record out", ended(UNVERIFIED))
def dropped_record(worker: HostileWorker, frame: Frame) -> None:
    worker.raw_message()
    worker.answer(frame)
    stop(worker)


@on_execute("sets its counter back to 0", ended(UNVERIFIED))
def counter_set_back(worker: HostileWorker, frame: Frame) -> None:
    worker.session.sending.counter = 0
    worker.answer(frame)
    stop(worker)


def send_flipped(worker: HostileWorker, position: int, mask: int = 1) -> None:
    """Send a record with a bit flipped."""
    record = bytearray(worker.raw_message())
    record[position] ^= mask
    worker.session.write(bytes(record))
    stop(worker)


@on_execute("flips a bit of a body", ended(UNVERIFIED))
def flipped_body(worker: HostileWorker, _frame: Frame) -> None:
    send_flipped(worker, 20)


@on_execute("flips a bit of a tag", ended(UNVERIFIED))
def flipped_tag(worker: HostileWorker, _frame: Frame) -> None:
    send_flipped(worker, -1)


@on_execute("flips the END flag", ended(UNVERIFIED))
def flipped_end(worker: HostileWorker, _frame: Frame) -> None:
    send_flipped(worker, 1)


@on_execute("makes the length of a record smaller", ended(UNVERIFIED))
def flipped_length(worker: HostileWorker, _frame: Frame) -> None:
    send_flipped(worker, 15)


@on_execute(
    "makes the length of a record greater and sends heartbeats as its body",
    ended("heard nothing from the peer", **SHORT),
)
def length_with_heartbeats(worker: HostileWorker, _frame: Frame) -> None:
    record = bytearray(worker.raw_message())
    record[14] = 0xF0
    worker.session.write(bytes(record))
    worker.scene.struck.set()
    worker.session.heartbeat_seconds = 0.05
    worker.session.read_to_the_end()


@on_execute("names a link that isn't open", ended("no such link is open"))
def unopened_link(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.sending.links[98] = "data"
    worker.session.write(worker.raw_message(link=98))
    stop(worker)


@on_execute("names a link of the manager's", ended("carr|fit|direction|link"))
def link_of_the_manager(worker: HostileWorker, _frame: Frame) -> None:
    link = next(number for number, endpoint in worker.links.items() if endpoint == "exoskel.task")
    worker.session.sending.links[link] = "data"
    worker.session.write(worker.raw_message(link=link))
    stop(worker)


@on_execute("names another job", ended("its job is not the link's"))
def other_group(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.write(worker.raw_message(group=77))
    stop(worker)


def send_header(
    worker: HostileWorker, kind: int, flags: int, reserved: int, link: int, length: int
) -> None:
    """Send a header and some bytes behind it."""
    header = struct.pack(">BBHIII", kind, flags, reserved, link, worker.session.group, length)
    worker.session.write(header + bytes(min(length, 100) + 16))
    stop(worker)


@on_execute("sends a record of a kind that there isn't", ended("got 9 as record kind"))
def unknown_kind(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 9, 1, 0, worker.result_link, 16)


@on_execute("sets a flag that there isn't", ended("got 3 as record flags"))
def unknown_flag(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 2, 3, 0, worker.result_link, 16)


@on_execute("uses the reserved field", ended("got 1 as reserved field"))
def reserved_field(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 2, 1, 1, worker.result_link, 16)


@on_execute("sends a control record on a link", ended("link of this record kind"))
def control_on_a_link(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 1, 1, 0, worker.result_link, 16)


@on_execute("sends a record of a message on link 0", ended("link of this record kind"))
def message_on_link_0(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 2, 1, 0, 0, 16)


@on_execute("sends an empty record", ended("got 0 as record length"))
def empty_record(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 2, 1, 0, worker.result_link, 0)


@on_execute("sends a Head record of 65,537 bytes", ended("record length is over its limit"))
def head_over_the_limit(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 2, 1, 0, worker.result_link, 65_537)


@on_execute("sends a record of 4 GiB", ended("record length is over its limit: got 4294967295"))
def record_of_4_gibibytes(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 4, 1, 0, worker.result_link, 0xFFFF_FFFF)


@on_execute("sends a control record of 16,385 bytes", ended("record length is over its limit"))
def control_over_the_limit(worker: HostileWorker, _frame: Frame) -> None:
    send_header(worker, 1, 1, 0, 0, 16_385)


@on_execute("sends the manager's own record back", ended(UNVERIFIED))
def reflected_record(worker: HostileWorker, _frame: Frame) -> None:
    session = worker.session
    reflected = Direction(**vars(session.receiving))
    reflected.counter = session.sending.counter
    session.write(reflected.seal("control", True, 0, 0, b"\x08"))
    stop(worker)


@on_execute("seals in the next epoch without a KeyUpdate", ended(UNVERIFIED))
def epoch_without_key_update(worker: HostileWorker, frame: Frame) -> None:
    worker.session.sending.update_keys()
    worker.answer(frame)
    stop(worker)


@on_execute("seals with the keys of a weaker protection", ended(UNVERIFIED))
def weaker_keys(worker: HostileWorker, frame: Frame) -> None:
    worker.session.sending.protections = ["integrity", "integrity", "plain"]
    worker.answer(frame)
    stop(worker)


@on_execute("updates its keys before every record, 2,000 times", harmless())
def key_update_flood(worker: HostileWorker, frame: Frame) -> None:
    for _ in range(2000):
        worker.session.control(control="key_update")
    worker.answer(frame)


@on_execute("sends a record after its Close", ended("a record after its Close"))
def record_after_close(worker: HostileWorker, _frame: Frame) -> None:
    close = worker.session.seal_control(control="close", reason=0, text="")
    worker.session.write(close + worker.raw_message())
    stop(worker)


# Who closes with bytes unread resets the connection.
CUT = "without a Close|the connection broke"


@on_execute("ends the connection without a Close", ended(CUT))
def truncation(worker: HostileWorker, _frame: Frame) -> None:
    worker.socket.close()
    wait_for_the_end(worker.socket)


@on_execute("ends the connection in the middle of a record", ended(CUT))
def truncation_within_a_record(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.write(worker.raw_message()[:-5])
    worker.socket.close()
    wait_for_the_end(worker.socket)


@on_execute("ends its direction without a Close and goes on reading", ended("without a Close"))
def half_close_without_close(worker: HostileWorker, _frame: Frame) -> None:
    worker.socket.shutdown(1)
    wait_for_the_end(worker.socket)


@on_execute("says nothing any more", ended("heard nothing from the peer", **SHORT))
def silence(worker: HostileWorker, _frame: Frame) -> None:
    worker.scene.struck.set()
    wait_for_the_end(worker.socket)


@on_execute("reads and says nothing any more", ended("heard nothing from the peer", **SHORT))
def never_reading(worker: HostileWorker, _frame: Frame) -> None:
    worker.scene.struck.set()
    worker.scene.over.wait()


@on_execute("drips a record, a byte every 50 ms", ended("heard nothing from the peer", **SHORT))
def slow_drip(worker: HostileWorker, _frame: Frame) -> None:
    worker.scene.struck.set()
    for byte in worker.raw_message(head=b"\0" + bytes(60_000)):
        worker.session.write(bytes([byte]))
        if worker.scene.over.wait(0.05):
            break
