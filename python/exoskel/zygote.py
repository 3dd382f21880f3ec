"""A process that has imported what a slot needs, and becomes slots by forking: a few milliseconds for each, and memory in common.

It has one thread, no keys and no sessions. A slot that it forks becomes a child of whoever started the zygote, as though that one had
started it itself: the process between the two ends at once, and the slot goes to the next above it that adopts orphans.
"""

from __future__ import annotations

import errno
import gc
import os
import select

from . import _core

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["OPTION", "Zygote", "serve"]

# Stands before the number of the socket over which a zygote is asked.
OPTION = "--zygote-fd"
# Stands before the number of the process that starts a zygote. The zygote can't ask for it: that process may have ended by then, and
# the zygote would follow whoever has adopted it, with a request that waits in the socket.
_STARTER = "--starter"
# Longer than any request and any answer.
_MESSAGE_BYTES_MAX = 256
# A zygote that has not answered for so long stands still.
_ANSWER_SECONDS = 20.0
# Between two looks at whether the slot is still wanted.
_LOOK_SECONDS = 0.1


class Zygote:
    """A zygote as its parent sees it. The parent must adopt orphans (``PR_SET_CHILD_SUBREAPER``), or the slots go to another process.

    Parameters
    ----------
    command : sequence of str
        Starts it; it must call `serve` with what is appended.
    descriptors : sequence of int
        What it and its slots inherit.
    """

    def __init__(self, command: Sequence[str], descriptors: Sequence[int]) -> None:
        import socket
        import subprocess

        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._running = subprocess.Popen(
                [*command, OPTION, str(theirs.fileno()), _STARTER, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                pass_fds=[*descriptors, theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()

    @property
    def process(self) -> int:
        """Its process number."""
        return self._running.pid

    def fork(self, words: Sequence[str], is_ending: Callable[[], bool]) -> int:
        """Have a slot forked.

        Parameters
        ----------
        words : sequence of str
            What `serve` returns in it.
        is_ending : callable
            Says that nobody wants the slot any more; asked while the zygote doesn't answer.

        Returns
        -------
        int
            Its process number; it is a child of this process.

        Raises
        ------
        OSError
            When there can't be another process. Without a number (``errno``) when the zygote has ended or stands still: it is to be closed.
        """
        try:
            self._control.send("\0".join(words).encode())
            answer = self._answer(is_ending)
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        if not answer:
            raise OSError(f"its zygote ended with code {self._running.wait()}")
        number = int(answer)
        if number < 0:
            raise OSError(-number, os.strerror(-number))
        return number

    def _answer(self, is_ending: Callable[[], bool]) -> bytes:
        self._control.settimeout(_LOOK_SECONDS)
        for _ in range(round(_ANSWER_SECONDS / _LOOK_SECONDS)):
            try:
                return self._control.recv(_MESSAGE_BYTES_MAX)
            except TimeoutError:
                if is_ending():
                    break
        raise OSError(f"its zygote hasn't answered for {_ANSWER_SECONDS:g} seconds")

    def close(self) -> None:
        """End it. The slots live on."""
        self._control.close()
        self._running.kill()
        self._running.wait()


def serve(arguments: list[str]) -> list[str]:
    """Fork a slot for each request, as a zygote; return in each slot.

    Parameters
    ----------
    arguments : list of str
        `OPTION` and the number of the socket come last, with the number of the process that has started the zygote.

    Returns
    -------
    list of str
        The other arguments, and the words of the request.
    """
    *arguments, _, control, _, number = arguments
    requests, starter = int(control), int(number)
    reader, writer = os.pipe()
    if not _core.follow_parent(starter, "exoskel zygote", False):
        os._exit(1)
    # What is here already is the same in every slot: looking at it would only make a copy.
    gc.freeze()
    while request := os.read(requests, _MESSAGE_BYTES_MAX):
        try:
            between = os.fork()
        except OSError as error:
            os.write(requests, _refusal(error))
            continue
        if between == 0:
            end = _fork_and_end(writer)
            for descriptor in (requests, reader, writer):
                os.close(descriptor)
            words = request.decode().split("\0")
            _become_slot(starter, end, words)
            return [*arguments, *words]
        # Before it is said which process it is, it is a child of the starter.
        os.waitpid(between, 0)
        os.write(requests, os.read(reader, _MESSAGE_BYTES_MAX))
    os._exit(0)


def _fork_and_end(writer: int) -> int:
    """Fork a slot and say its number. Return in the slot, with a descriptor that tells when its parent has ended."""
    try:
        end = os.pidfd_open(os.getpid())
        slot = os.fork()
    except OSError as error:
        os.write(writer, _refusal(error))
        os._exit(1)
    if slot:
        os.write(writer, b"%d" % slot)
        os._exit(0)
    return end


def _refusal(error: OSError) -> bytes:
    return b"-%d" % (error.errno or errno.EAGAIN)


def _become_slot(starter: int, end: int, words: list[str]) -> None:
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    waiting.poll()
    os.close(end)
    os.setsid()
    number = words[words.index("--slot") + 1]
    if not _core.follow_parent(starter, f"exoskel slot {number}", True):
        os._exit(1)
