"""The servers that are measured: our three doors, and Apache with mod_gridsite. Each runs on one core."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benches.machine import ROOT
from benches.site.machine import GRIDSITE, cpu_seconds
from benches.site.people import FQANS, USER, People

EXAMPLES = ROOT / "target" / "release" / "examples"
PORT = 18443
START_SECONDS = 20.0
STOP_SECONDS = 10.0
MODULES = Path("/usr/lib/apache2/modules")


@dataclass(frozen=True)
class Subject:
    """A server in one variant."""

    name: str
    host_key: str = "rsa"
    cached: bool = True

    @property
    def is_ours(self) -> bool:
        """Whether this project made it."""
        return not self.name.startswith("gridsite")

    @property
    def label(self) -> str:
        """What reports call it."""
        words = [self.name, self.host_key.upper()]
        words += [] if self.cached or not self.is_ours else ["no cache"]
        return ", ".join(words)


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    address: str
    sessions: tuple[int, ...]
    # What its answer to our user holds.
    expect: tuple[str, ...]

    def cpu_seconds(self) -> float:
        """What all its processes have used."""
        return sum(map(cpu_seconds, self.sessions))


def build() -> None:
    """Compiles our servers and the load generator."""
    command = ["cargo", "build", "--locked", "--release", "--quiet", "--package"]
    subprocess.run([*command, "exoskel-service", "--examples"], cwd=ROOT, check=True)


@contextlib.contextmanager
def serve(subject: Subject, people: People, folder: Path, core: int) -> Iterator[Running]:
    """Runs a server on `core` for as long as the context lasts."""
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        if subject.is_ours:
            commands = our_commands(subject, people, folder)
        else:
            commands = [apache_command(subject, people, folder)]
        processes = [stack.enter_context(process(one, folder, core)) for one in commands]
        wait_for_port(processes, folder)
        sessions = tuple(one.pid for one in processes)
        yield Running(f"127.0.0.1:{PORT}", sessions, (USER, *FQANS))


@contextlib.contextmanager
def process(command: list[str], folder: Path, core: int) -> Iterator[subprocess.Popen[bytes]]:
    """One process in a session of its own, ended with all that it has started."""
    with (folder / "log").open("ab") as log:
        running = subprocess.Popen(
            ["taskset", "--cpu-list", str(core), *command],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield running
    finally:
        running.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            running.wait(STOP_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()


def wait_for_port(processes: list[subprocess.Popen[bytes]], folder: Path) -> None:
    """Waits until somebody listens, or says why nobody does."""
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", PORT)).close()
            return
        if any(one.poll() is not None for one in processes):
            break
        time.sleep(0.05)
    raise RuntimeError(f"the server does not start: {(folder / 'log').read_text()[-1000:]}")


def our_commands(subject: Subject, people: People, folder: Path) -> list[list[str]]:
    """Our server as an administrator would run it, its audit trail in a file; only the cache may be off."""
    upstream = folder / "application.sock"
    configuration = folder / "service.toml"
    table = {
        "listen": f"127.0.0.1:{PORT}",
        "audit": str(folder / "audit.jsonl"),
        "host.certificate": str(people.host(subject.host_key, "cert")),
        "host.key": str(people.host(subject.host_key, "key")),
        "trust.anchors": str(people.anchors),
        "trust.vomsdir": str(people.vomsdir),
    }
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
    text += "" if subject.cached else "trust.cache_identities = 0\n"
    commands = []
    if subject.name == "front":
        text += f"upstream.address = {json.dumps(f'unix:{upstream}')}\n"
        commands.append([str(EXAMPLES / "application"), str(upstream)])
    configuration.write_text(text)
    return [*commands, [str(EXAMPLES / subject.name), str(configuration)]]


# As Debian ships it, except: workers for 400 clients (150 would make some wait), all of them from the start; no
# session cache and no tickets, which no client of this bench would use and which cost time.
MPMS = {
    "event": "StartServers 16\nThreadsPerChild 25\nMaxRequestWorkers 400\nMaxSpareThreads 400\n",
    "prefork": "StartServers 100\nServerLimit 400\nMaxRequestWorkers 400\nMaxSpareServers 400\n",
}


def apache_command(subject: Subject, people: People, folder: Path) -> list[str]:
    """Apache with mod_gridsite: proxies, attributes and revocation lists on, DN and FQANs as fields of the answer."""
    mpm = "prefork" if "prefork" in subject.name else "event"
    pages, sessions = folder / "pages", folder / "sessions"
    pages.mkdir()
    sessions.mkdir()
    (pages / "index.txt").write_text("identified\n")
    if os.geteuid() == 0:
        account = pwd.getpwnam("www-data")
        os.chown(sessions, account.pw_uid, account.pw_gid)
    modules = [f"mpm_{mpm}", "authz_core", "dir", "headers", "mime"]
    modules += ["socache_shmcb", "ssl"]
    loads = "".join(f"LoadModule {name}_module {MODULES}/mod_{name}.so\n" for name in modules)
    configuration = folder / "httpd.conf"
    configuration.write_text(f"""\
ServerRoot {folder}
ServerName localhost
PidFile {folder}/pid
Listen 127.0.0.1:{PORT}
{loads}LoadModule gridsite_module {GRIDSITE}
{MPMS[mpm]}TypesConfig /etc/mime.types
User www-data
Group www-data
ErrorLog {folder}/error.log
LogLevel warn
CustomLog {folder}/access.log "%h %t %>s %b \\"%r\\" \\"%{{GRST_CRED_AURI_0}}e\\" \\"%{{GRST_VOMS_FQANS}}e\\""
DocumentRoot {pages}
DirectoryIndex index.txt
KeepAlive On
GridSiteSessionsDir {sessions}
SSLEngine on
SSLProtocol -all +TLSv1.2 +TLSv1.3
SSLSessionCache none
SSLSessionTickets off
SSLCertificateFile {people.host(subject.host_key, "cert")}
SSLCertificateKeyFile {people.host(subject.host_key, "key")}
SSLCACertificatePath {people.anchors}
SSLCARevocationPath {people.anchors}
SSLCARevocationCheck chain
SSLVerifyClient require
SSLVerifyDepth 10
<Directory {pages}>
  Require all granted
  GridSiteEnvs on
  GridSiteGSIProxyLimit 10
  Header set Grid-DN "%{{GRST_CRED_AURI_0}}e"
  Header set Grid-FQANs "%{{GRST_VOMS_FQANS}}e"
</Directory>
""")
    return ["apache2", "-DFOREGROUND", "-f", str(configuration)]
