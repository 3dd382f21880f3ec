"""What foreign code may try, each as a program of its own: it ends with 0 if it gets out, and with an exception if not."""

from __future__ import annotations

__all__ = ["ATTACKS"]

_KERNEL = """
import ctypes, os, sys
kernel = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    result = kernel.syscall(number, *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
"""

_SOCKET = """
import os, socket
"""

# Not every file system knows every request; none of them says that one isn't permitted to the owner.
_REQUEST = """
import errno, fcntl, os

def asked(request, value):
    try:
        fcntl.ioctl(os.open('own', os.O_CREAT | os.O_RDONLY), request, value)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise
"""

# Of x86-64.
_CALLS = {
    "ptrace": 101,
    "add_key": 248,
    "unshare": 272,
    "clone": 56,
    "mount": 165,
    "io_uring_setup": 425,
    "shmget": 29,
    "shmctl": 31,
    "keyctl": 250,
}

# `sandbox_account` says where all is that they aim at, in their environment.
ATTACKS = {
    "reads the credential of its agent": "import os; open(os.environ['SECRET']).read()",
    "lists a folder of the account": "import os; os.listdir(os.path.dirname(os.environ['SECRET']))",
    "writes outside of its folder": "import os; open(os.environ['OUTSIDE'], 'w').write('here')",
    "removes what is outside of its folder": "import os; os.remove(os.environ['REMOVED'])",
    "opens a file of the account to others": "import os; os.chmod(os.environ['LEFT'], 0o644)",
    "opens a file to others while it is open": "import os; os.fchmod(os.open('own', os.O_CREAT | os.O_RDWR), 0o666)",
    "says that a file of the account is old": "import os; os.utime(os.environ['LEFT'], (0, 0))",
    "names an attribute of a file of the account": "import os; os.setxattr(os.environ['LEFT'], 'user.left', b'x')",
    "lists the attributes of a file of the account": "import os; os.listxattr(os.environ['LEFT'])",
    "marks a file of the account for backups": _REQUEST
    + "asked(0x40086602, (0x40).to_bytes(8, 'little'))",
    "sets attributes of a file of the account as XFS has them": _REQUEST
    + "asked(0x401c5820, bytes(28))",
    "has others of the account wait for a file": "import fcntl, os; fcntl.fcntl(os.open('own', os.O_CREAT | os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_WRLCK)",
    "is told of changes in a folder of the account": "import fcntl, os; fcntl.fcntl(os.open('.', os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_MODIFY)",
    "watches a folder of the account": _KERNEL
    + "call(254, call(294, 0), os.path.dirname(os.environ['SECRET']).encode(), 0x100)",
    "gives a sibling one processor": "import os; os.sched_setaffinity(int(os.environ['SIBLING']), {0})",
    "slows the input of a sibling": _KERNEL + "call(251, 1, int(os.environ['SIBLING']), 3 << 13)",
    "gives a file of the account to its group": "import os; os.chown(os.environ['LEFT'], -1, os.getgid())",
    "opens what another job has left": "import os; open(os.environ['LEFT']).read()",
    "finds a secret of its agent in the environment": "import os; os.environ['AGENT_TOKEN']",
    "connects by IPv4": _SOCKET
    + "socket.create_connection(('127.0.0.1', int(os.environ['PORT'])))",
    "connects by IPv6": _SOCKET + "socket.create_connection(('::1', int(os.environ['PORT6'])))",
    "connects to a path": _SOCKET + "socket.socket(socket.AF_UNIX).connect(os.environ['UNIX'])",
    "connects to an abstract name": _SOCKET
    + "socket.socket(socket.AF_UNIX).connect('\\0' + os.environ['ABSTRACT'])",
    "sends a datagram from a pair": _SOCKET
    + "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', os.environ['DATAGRAM'])",
    "traces a sibling": _KERNEL + f"call({_CALLS['ptrace']}, 16, int(os.environ['SIBLING']), 0, 0)",
    "reads the memory of a sibling": "import os; open(f\"/proc/{os.environ['SIBLING']}/mem\", 'rb')",
    "reads the environment of a sibling": "import os; open(f\"/proc/{os.environ['SIBLING']}/environ\", 'rb').read()",
    "sends a sibling a signal": "import os, signal; os.kill(int(os.environ['SIBLING']), signal.SIGCONT)",
    "sets a limit for a sibling": "import os, resource; resource.prlimit(int(os.environ['SIBLING']), resource.RLIMIT_CORE, (0, 0))",
    "leaves its process group": """
import os, sys
child = os.fork()
if child == 0:
    os.setsid()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    "takes more memory": "bytearray(1 << 29)",
    "takes more memory by a shared mapping": "import mmap; mmap.mmap(-1, 1 << 29)",
    "takes more memory by a file without a name": "import os; os.ftruncate(os.memfd_create('more'), 1 << 29)",
    "takes more memory by what waits in sockets": """
import resource, socket
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held, pairs = 0, []
while held < 1 << 28:
    pairs.append(socket.socketpair())
    for one in pairs[-1]:
        one.setblocking(False)
        try:
            while True:
                held += one.send(bytes(1 << 16))
        except BlockingIOError:
            pass
""",
    "writes a longer file": "open('long', 'wb').truncate(1 << 24)",
    "starts more processes": """
import os, time
for _ in range(20):
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
""",
    "uses io_uring": _KERNEL
    + f"call({_CALLS['io_uring_setup']}, 4, ctypes.create_string_buffer(120))",
    "executes a file without a name": """
import os, shutil
memory = os.memfd_create('program')
os.write(memory, open(shutil.which('true'), 'rb').read())
os.execv(f'/proc/self/fd/{memory}', ['true'])
""",
    "executes what it has written": """
import os, shutil
program = os.open('program', os.O_CREAT | os.O_WRONLY, 0o755)
os.write(program, open(shutil.which('true'), 'rb').read())
os.close(program)
os.execv('program', ['program'])
""",
    "makes a user namespace": _KERNEL + f"call({_CALLS['unshare']}, 0x10000000)",
    "makes a user namespace by a new process": _KERNEL
    + f"""
child = kernel.syscall({_CALLS["clone"]}, 0x10000000 | 17, 0, 0, 0, 0)
if child == 0:
    os._exit(0)
if child < 0:
    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
""",
    "mounts in namespaces of its own": _KERNEL
    + f"call({_CALLS['unshare']}, 0x10020000); call({_CALLS['mount']}, b'none', b'/', 0, 0x44000, 0)",
    "keeps a key for others": _KERNEL
    + f"key = call({_CALLS['add_key']}, b'user', b'left', b'x', ctypes.c_size_t(1), -5); call({_CALLS['keyctl']}, 21, key)",
    "leaves memory for others": _KERNEL
    + f"memory = call({_CALLS['shmget']}, 0, 4096, 0o1600); call({_CALLS['shmctl']}, memory, 0, 0)",
}
