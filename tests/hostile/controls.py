"""What a worker does wrong with control messages: links, credit, heartbeats, protections, Close."""

from __future__ import annotations

import struct

from tests.hostile.behaviour import (
    HostileWorker,
    ended,
    harmless,
    on_execute,
    on_link,
    on_ready,
    wait_for_the_end,
)
from tests.hostile.records import stop
from tests.protocol_reference import put_text
from tests.task_reference import Frame


def send_control(worker: HostileWorker, body: bytes) -> None:
    """Send a control record of any content, and wait for what the manager says."""
    worker.session.write(worker.raw_control(body))
    stop(worker)


def send_last(worker: HostileWorker, body: bytes) -> None:
    """Send a Close and nothing behind it."""
    worker.session.write(worker.raw_control(body))
    wait_for_the_end(worker.socket)


@on_execute("sends a control message that there isn't", ended("got 13 as control message"))
def unknown_control(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x0d")


@on_execute("puts a byte behind a control message", ended("too many"))
def control_too_long(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x08\0")


@on_execute("cuts a control message short", ended("ends early"))
def control_too_short(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x06\0\0")


# --- links -----------------------------------------------------------------------------------------


@on_link("accepts links with handlers of other names", harmless())
def other_handlers(worker: HostileWorker, link: int, protection: str, handlers: list[str]) -> None:
    # A handler is named by its place.
    others = ["eval"] * len(handlers)
    worker.session.control(control="link_accept", link=link, protection=protection, handlers=others)


@on_link("accepts links with less protection", ended("less protection than was asked for"))
def accepted_with_less_protection(
    worker: HostileWorker, link: int, _protection: str, handlers: list[str]
) -> None:
    worker.session.control(control="link_accept", link=link, protection="plain", handlers=handlers)


@on_link("accepts links without handlers", ended("handler"))
def no_handlers(worker: HostileWorker, link: int, protection: str, _handlers: list[str]) -> None:
    worker.session.control(control="link_accept", link=link, protection=protection, handlers=[])


@on_link("refuses every link", ended("is not open"))
def links_refused(worker: HostileWorker, link: int, _protection: str, _handlers: list[str]) -> None:
    worker.session.control(control="link_refuse", link=link, reason=1, text="")


@on_link("answers no link", harmless())
def links_unanswered(
    _worker: HostileWorker, _link: int, _protection: str, _handlers: list[str]
) -> None:
    """Messages may follow an opening at once, so the manager has no need of the answer."""


@on_execute(
    "accepts a link that was accepted before", ended("answers an opening that was not asked")
)
def link_accepted_twice(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(
        control="link_accept", link=1, protection="encrypted", handlers=["execute"]
    )
    stop(worker)


@on_execute("accepts a link that nobody opened", ended("answers an opening that was not asked"))
def unasked_link_accepted(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(
        control="link_accept", link=41, protection="encrypted", handlers=["execute"]
    )
    stop(worker)


@on_execute(
    "refuses a link that it accepted before", ended("answers an opening that was not asked")
)
def accepted_link_refused(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="link_refuse", link=1, reason=1, text="")
    stop(worker)


@on_execute("ends a link that it has accepted", ended("is not open"))
def accepted_link_ended(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="link_end", link=1, reason=3, text="enough")
    stop(worker)


@on_execute("ends a link that nobody opened", ended("ends a link that it has not accepted"))
def unopened_link_ended(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="link_end", link=41, reason=3, text="")
    stop(worker)


@on_execute("makes a link's protection weaker", ended("makes the protection of a link weaker"))
def link_made_weaker(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="link_protection", link=1, protection="plain")
    stop(worker)


@on_execute("accepts a link with 129 handlers", ended("number of handlers is over its limit"))
def too_many_handlers(worker: HostileWorker, _frame: Frame) -> None:
    body = b"\x02" + struct.pack(">IBH", 1, 2, 129) + 129 * put_text("a")
    send_control(worker, body)


@on_execute("accepts a link with terminal escapes as a handler", ended("not plain UTF-8 text"))
def escapes_in_a_handler(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x02" + struct.pack(">IBH", 1, 2, 1) + put_text("\x1b[2J"))


@on_ready("opens 300 links", ended("links|numbers"))
def too_many_links(worker: HostileWorker) -> None:
    opened = b""
    for number in range(4, 604, 2):
        opened += worker.session.seal_control(**worker.opening(number, "exoskel.result"))
    worker.session.write(opened)
    worker.session.read_to_the_end()


@on_ready("opens and closes a link 3,000 times", harmless())
def link_opened_again_and_again(worker: HostileWorker) -> None:
    for _ in range(3000):
        worker.session.control(**worker.opening(4, "exoskel.result"))
        worker.session.control(control="link_close", link=4)
        while worker.session.receive().get("control") != "link_closed":
            pass
    worker.say("ready", b"")


@on_execute("opens a link with a number of the manager's", ended("number|link"))
def link_number_of_the_manager(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(**worker.opening(7, "exoskel.result"))
    stop(worker)


@on_execute("opens a link that is open", ended("number|link"))
def link_number_twice(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(**worker.opening(worker.result_link, "exoskel.result"))
    stop(worker)


@on_execute("opens link 0", ended("got 0 as link"))
def link_0(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(**worker.opening(0, "exoskel.result"))
    stop(worker)


@on_execute("opens a link with the highest number", ended("number|link"))
def highest_link_number(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(**worker.opening(0xFFFF_FFFE, "exoskel.result"))
    stop(worker)


@on_execute(
    "opens a link with a weaker protection", ended("its protection is below what this session has")
)
def link_of_a_weaker_protection(worker: HostileWorker, _frame: Frame) -> None:
    opening = worker.opening(4, "exoskel.result") | {"protection": "plain"}
    worker.session.control(**opening)
    stop(worker)


@on_execute("opens a link of a class that there isn't", ended("got 9 as traffic class"))
def unknown_class(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x01" + struct.pack(">IIBB", 4, 0, 9, 2) + put_text("exoskel.result"))


@on_execute("opens a link to an endpoint with terminal escapes", ended("not plain UTF-8 text"))
def escapes_in_an_endpoint(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(**worker.opening(4, "\x1b]0;owned\x07"))
    stop(worker)


@on_execute("opens a link to an endpoint that there isn't, and sends on it", harmless())
def unknown_endpoint(worker: HostileWorker, frame: Frame) -> None:
    worker.session.control(**worker.opening(4, "exoskel.secrets"))
    worker.session.write(worker.raw_message(link=4))
    worker.answer(frame)


@on_execute("closes a link of the manager's", ended("closes a link that the peer has not opened"))
def link_of_the_manager_closed(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="link_close", link=1)
    stop(worker)


@on_execute("confirms the end of a link that has not ended", ended("has not ended"))
def unasked_link_closed(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="link_closed", link=1)
    stop(worker)


@on_execute("closes the link of its results and goes on with it", ended("no such link is open"))
def message_on_a_closed_link(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="link_close", link=worker.result_link)
    while worker.session.receive().get("control") != "link_closed":
        pass
    worker.session.write(worker.raw_message())
    stop(worker)


# --- credit, heartbeats, protections ---------------------------------------------------------------


@on_execute("gives more credit than was used", ended("grants more credit than was used"))
def credit_overflow(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="credit", link=1, bytes=1 << 48)
    stop(worker)


@on_execute("gives 2^63 bytes of credit", ended("credit is over its limit"))
def absurd_credit(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="credit", link=1, bytes=1 << 63)
    stop(worker)


@on_execute("gives credit for a link that isn't open", harmless())
def credit_for_no_link(worker: HostileWorker, frame: Frame) -> None:
    worker.session.control(control="credit", link=77, bytes=1000)
    worker.answer(frame)


@on_execute("says in a Heartbeat that it has sealed more", ended("counts of its heartbeat"))
def heartbeat_of_another_counter(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="heartbeat", sealed=1 << 40, opened=0)
    stop(worker)


@on_execute(
    "says in a Heartbeat that it has opened what was never sent", ended("counts of its heartbeat")
)
def heartbeat_of_unsent_records(worker: HostileWorker, _frame: Frame) -> None:
    sealed = worker.session.sending.counter
    worker.session.control(control="heartbeat", sealed=sealed, opened=1 << 40)
    stop(worker)


@on_execute("sends 3,000 heartbeats", harmless())
def heartbeat_flood(worker: HostileWorker, frame: Frame) -> None:
    for _ in range(3000):
        worker.session.heartbeat()
    worker.answer(frame)


@on_execute("lowers the protections", ended("protections weaker than those that hold"))
def weaker_protections(worker: HostileWorker, _frame: Frame) -> None:
    worker.session.control(control="protections", protections=["integrity", "integrity", "plain"])
    stop(worker)


@on_execute("states the protections that hold 1,000 times", harmless())
def protections_flood(worker: HostileWorker, frame: Frame) -> None:
    for _ in range(1000):
        worker.session.control(
            control="protections", protections=list(worker.session.sending.protections)
        )
    worker.answer(frame)


@on_execute("names a protection that there isn't", ended("got 3 as protection"))
def unknown_protections(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x09\x02\x02\x03")


# --- Close -----------------------------------------------------------------------------------------


@on_execute("says Close with terminal escapes", ended("not plain UTF-8 text"))
def escapes_in_a_close(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x0a\x04" + put_text("\x1b[2J\x1b]0;owned\x07"))


@on_execute("says Close with a text of 1,001 bytes", ended("over its limit: got 1001"))
def huge_close(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x0a\x04" + put_text("a" * 1001))


@on_execute("says Close for a reason that there isn't", ended("got 9 as reason"))
def unknown_close(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x0a\x09" + put_text(""))


@on_execute("says Close for being finished, and says more", ended("got 0 as reason"))
def finished_with_a_text(worker: HostileWorker, _frame: Frame) -> None:
    send_control(worker, b"\x0a\0" + put_text("really"))


@on_execute("says Close in the middle of its work", ended("in the middle of its work"))
def close_while_working(worker: HostileWorker, _frame: Frame) -> None:
    send_last(worker, b"\x0a\x01" + put_text(""))


@on_execute("blames the manager in a Close of two lines", ended("no items are left"))
def forged_line_in_a_close(worker: HostileWorker, _frame: Frame) -> None:
    send_last(worker, b"\x0a\x04" + put_text("no items are left\naccepted manager root"))
