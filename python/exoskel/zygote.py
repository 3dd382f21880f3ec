"""A process that has imported what a slot needs, and becomes slots by forking: a few milliseconds for each, and memory in common.

It has one thread, no keys and no sessions. A slot that it forks is a child of whoever started the zygote, as though that one had started
it itself: a supervisor, or a manager, which speaks to its zygote by itself (`net/src/manager/zygote.rs`). So slots neither depend on the
zygote nor hear of its end. The signer of a worker, which has that worker's key, is forked in the same way.
"""

from __future__ import annotations

import _socket
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
# What a manager's child is given: options, connection, credential, policy.
_DESCRIPTORS_MAX, _DESCRIPTOR_BYTES = 4, 4
# Stands before what all that comes from a manager's child has in its environment, and by which the child is known to its manager.
_MARK = "--mark"
_MARK_VARIABLE = "EXOSKEL_STARTED_BY"
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
        The other arguments, the words of the request, and each descriptor that came with it behind the word that names it.
    """
    *arguments, _, control, _, number = arguments
    starter = int(number)
    requests = _socket.socket(fileno=_own(int(control)))
    if not _core.follow_parent(starter, "exoskel zygote", False):
        os._exit(1)
    # What is here already is the same in every slot: looking at it would only make a copy.
    gc.freeze()
    while True:
        request, descriptors = _received(requests)
        if not request:
            os._exit(0)
        words = request.decode().split("\0")
        mark = ""
        if words[0] == _MARK:
            _, mark, *words = words
        try:
            slot = _forked(is_child=bool(mark))
        except OSError as error:
            slot = -(error.errno or errno.EAGAIN)
        if slot == 0:
            return [*arguments, *_become_slot(requests, starter, words, mark, descriptors)]
        # First, so that whoever sees the end of a connection has been told why.
        requests.send(f"{slot} {mark}".encode())
        for descriptor in descriptors:
            os.close(descriptor)


def _own(control: int) -> int:
    """Return the socket of a zygote as nobody inherits it. A manager leaves it in the place of standard input, where nothing else can be inherited by mistake."""
    own = os.dup(control)
    if control == 0:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
    else:
        os.close(control)
    return own


def _received(requests: _socket.socket) -> tuple[bytes, list[int]]:
    """Wait for a request; return its words, none when there will be no other one, and its descriptors."""
    space = _socket.CMSG_SPACE(_DESCRIPTORS_MAX * _DESCRIPTOR_BYTES)
    try:
        request, beside, *_ = requests.recvmsg(_MESSAGE_BYTES_MAX, space, _socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        # Whoever asks has gone without reading all answers.
        return b"", []
    return request, [number for *_, data in beside for number in memoryview(data).cast("i")]


def _forked(*, is_child: bool) -> int:
    """Fork a slot that is a child of the starter. Return its process number; 0 in the slot."""
    try:
        return _core.fork_sibling()
    except OSError as error:
        # A manager adopts no orphans: it starts its children by itself then.
        if error.errno != errno.ENOSYS or is_child:
            raise
    return _fork_orphan()


def _fork_orphan() -> int:
    """Fork a slot by a process that ends at once: the slot goes to the next above it that adopts orphans."""
    reader, writer = os.pipe()
    between = os.fork()
    if between:
        # Before it is said which process it is, it is a child of the starter.
        os.waitpid(between, 0)
        number = int(os.read(reader, _MESSAGE_BYTES_MAX))
        os.close(reader)
        os.close(writer)
        return number
    try:
        end = os.pidfd_open(os.getpid())
        slot = os.fork()
    except OSError as error:
        os.write(writer, b"-%d" % (error.errno or errno.EAGAIN))
        os._exit(1)
    if slot:
        os.write(writer, b"%d" % slot)
        os._exit(0)
    waiting = select.poll()
    waiting.register(end, select.POLLIN)
    waiting.poll()
    for descriptor in (end, reader, writer):
        os.close(descriptor)
    return 0


def _become_slot(
    requests: _socket.socket, starter: int, words: list[str], mark: str, descriptors: list[int]
) -> list[str]:
    """Leave the zygote's group; return what the slot is told, with each descriptor behind the word that names it."""
    if not mark:
        requests.close()
        os.setsid()
        # A signer runs no tasks, and so has no descendants to adopt.
        is_slot = "--slot" in words
        name = f"exoskel slot {words[words.index('--slot') + 1]}" if is_slot else "exoskel signer"
        if not _core.follow_parent(starter, name, is_slot):
            os._exit(1)
        return words
    # As a child that its manager starts by itself: of the same session. It ends with its connection.
    os.setpgid(0, 0)
    try:
        # The zygote may have been ended before it could say so.
        requests.send(f"{os.getpid()} {mark}".encode())
    except OSError:
        os._exit(1)
    requests.close()
    _core.overwrite_environment(_MARK_VARIABLE, mark)
    os.environ[_MARK_VARIABLE] = mark
    names = words[len(words) - len(descriptors) :]
    pairs = zip(names, map(str, descriptors), strict=True)
    return [*words[: len(words) - len(descriptors)], *(word for pair in pairs for word in pair)]
