"""Our verdicts on the vectors of grid identity, beside those of OpenSSL and libvomsapi; every authority of the IGTF; other programs' caches and replay; MPI under our tracer and in couplings; jobs over OpenSSH.

`make test-peers` runs this. Each difference in a verdict must stand in a table of `docs/identity-peers.md`, and each row of a table must be
a difference that is still there. Peers come from Debian's packages, which root gets installed, or from PyPI; where that can't be, this
says what is missing and fails, or with `--present` goes on with the peers that are there, naming the others.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.peers import caches, couplings, jobs, simgrid, tracer
from tests.peers.peer import ROOT, Peer, install, install_wheels, run

VECTORS = ROOT / "vectors" / "identity"
TABLES = ROOT / "docs" / "identity-peers.md"
JUDGE = ROOT / "target" / "debug" / "examples" / "judge"
POLICIES = Path("/usr/share/igtf-policy")
IGTF = ["classic", "mics", "slcs", "iota", "unaccredited", "experimental"]


def manifest() -> dict[str, Any]:
    """The cases."""
    loaded: dict[str, Any] = json.loads((VECTORS / "manifest.json").read_text(encoding="utf-8"))
    return loaded


def ours(*arguments: str | Path) -> Any:
    """What this project says."""
    done = run(JUDGE, *arguments)
    if done.returncode:
        raise SystemExit(f"{JUDGE} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


# --- the tables of differences ---------------------------------------------------------------------


def explained(peer: str) -> dict[str, tuple[str, str]]:
    """Case -> what the peer and we say, from the table below the peer's heading."""
    text = TABLES.read_text(encoding="utf-8")
    section = re.search(rf"^## {re.escape(peer)}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    if not section:
        raise SystemExit(f"{TABLES} has no section {peer}")
    found: dict[str, tuple[str, str]] = {}
    for row in re.findall(r"^\|(.+)\|$", section[1], re.MULTILINE):
        cells = [cell.strip() for cell in row.split("|")]
        for name in re.findall(r"`(\w+)`", cells[0]):
            if name in found:
                raise SystemExit(f"{TABLES}: {name} stands twice below {peer}")
            found[name] = (cells[1], cells[2])
    return found


def differences(peer: str, verdicts: Iterable[tuple[str, str, str, str]]) -> list[str]:
    """What is wrong: differences without a row, rows without a difference."""
    rows = explained(peer)
    wrong = []
    for name, theirs, we, details in verdicts:
        row = rows.pop(name, None)
        if theirs != we and row is None:
            wrong.append(
                f"{name}: {theirs} by {peer}, {we} by us, and no table says why ({details})"
            )
        elif row is not None and (theirs, we) != row:
            wrong.append(
                f"{name}: the table says {' / '.join(row)}, got {theirs} / {we} ({details})"
            )
    wrong += [f"{name}: the table of {peer} names an unknown case" for name in rows]
    return wrong


# --- OpenSSL ---------------------------------------------------------------------------------------


# The oldest patch of Debian 12 that the tables were read from.
OPENSSL_PATCH_MIN = 22


def openssl_missing() -> list[str]:
    """The tables are about one version, with what its patches mended: 3.0.19 took a list of changes for a whole one."""
    if not shutil.which("openssl"):
        return ["openssl"]
    version = run("openssl", "version").stdout
    found = re.match(r"OpenSSL 3\.0\.(\d+)", version)
    if found and int(found[1]) >= OPENSSL_PATCH_MIN:
        return []
    return [f"OpenSSL 3.0.{OPENSSL_PATCH_MIN} or a later 3.0 (got {version.strip()})"]


def openssl_accepts(case: dict[str, Any], time: int) -> tuple[bool, str]:
    """`openssl verify` with everything it has for grids, for a TLS client or else for a server."""
    certificates = re.findall(
        r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n",
        (VECTORS / case["chain"]).read_text(encoding="utf-8"),
        re.DOTALL,
    )
    with tempfile.TemporaryDirectory() as folder:
        leaf, others = Path(folder) / "leaf.pem", Path(folder) / "others.pem"
        leaf.write_text("".join(certificates[:1]))
        others.write_text("".join(certificates[1:]))
        for purpose in ["sslclient", "sslserver"]:
            done = run(
                *["openssl", "verify", "-allow_proxy_certs", "-crl_check_all"],
                *["-purpose", purpose, "-attime", str(time)],
                *["-no-CAfile", "-no-CAstore", "-CApath", str(VECTORS / case["trust"])],
                *(["-untrusted", str(others)] if certificates[1:] else []),
                str(leaf),
            )
            if not done.returncode:
                break
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "error" in line.lower()]
    return done.returncode == 0, lines[0] if lines else "OK"


def compare_openssl() -> list[str]:
    """Accepted or refused."""
    cases, verdicts = manifest(), ours("vectors")

    def ask(case: dict[str, Any]) -> tuple[str, str, str, str]:
        accepts, text = openssl_accepts(case, cases["time"])
        own = verdicts[case["name"]]
        words = {True: "accepted", False: "refused"}
        details = f"{text}; {own.get('reason', 'accepted')}"
        return case["name"], words[accepts], words[own["accepted"]], details

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return differences("OpenSSL 3.0", pool.map(ask, cases["cases"]))


# --- libvomsapi ------------------------------------------------------------------------------------


def voms_missing() -> list[str]:
    """A compiler, the library with its headers, and a way to tell it the time."""
    missing = [] if shutil.which("faketime") else ["faketime"]
    missing += [] if shutil.which("cc") else ["gcc"]
    headers = [Path("/usr/include/voms/voms_apic.h"), Path("/usr/include/openssl/pem.h")]
    missing += [str(header) for header in headers if not header.exists()]
    return missing


def compare_voms() -> list[str]:
    """The names that a chain has in its virtual organisations."""
    cases, verdicts = manifest(), ours("vectors")
    time = datetime.fromtimestamp(cases["time"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    # It would read the system's bundle of authorities for each question, 15 ms of it.
    environment = dict(os.environ, TZ="UTC", SSL_CERT_FILE="/nonexistent")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "voms_verdict"
        source = Path(__file__).with_name("voms_verdict.c")
        built = run("cc", "-Wall", "-Werror", "-o", program, source, "-lvomsapi", "-lcrypto")
        if built.returncode:
            raise SystemExit(f"{source.name} can't be built: {built.stderr}")

        def ask(case: dict[str, Any]) -> tuple[str, str, str, str]:
            places = [VECTORS / case[kind] for kind in ("trust", "vomsdir", "chain")]
            done = run("faketime", "-f", time, program, *places, env=environment)
            if done.returncode:
                raise SystemExit(f"{case['name']}: libvomsapi ended with {done.returncode}")
            lines = [line.split("\t") for line in done.stdout.splitlines()]
            theirs = [re.sub("/(Role|Capability)=NULL", "", x[1]) for x in lines if x[0] == "fqan"]
            own = verdicts[case["name"]]
            names = own.get("fqans", [])
            words = ["attributes" if one else "none" for one in (theirs, names)]
            if theirs and names and theirs != names:
                words[0] = "other attributes"
            details = f"{done.stdout!r}; {names}, {own.get('attribute_faults', own.get('reason'))}"
            return case["name"], words[0], words[1], details

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return differences("libvomsapi 2.1", pool.map(ask, cases["cases"]))


# --- the authorities of the IGTF -------------------------------------------------------------------


def igtf_missing() -> list[str]:
    """The packages unpack into one folder each (that of `slcs` has no authorities any more)."""
    missing = [] if shutil.which("openssl") else ["openssl"]
    return missing + [f"igtf-policy-{name}" for name in IGTF if not (POLICIES / name).is_dir()]


def compare_igtf() -> list[str]:
    """Every certificate of the packages loads, with its policies, and is what OpenSSL takes it for."""
    wrong = []
    with tempfile.TemporaryDirectory() as folder:
        names = collect_authorities(Path(folder))
        report = ours("trust", folder)
        wrong += unloaded(report, Path(folder), names)
        print(f"  {len(names)} certificates, {len(report['authorities'])} authorities")
        for one in report["authorities"]:
            if one["weaknesses"]:
                print(f"  {one['subject']}: {'; '.join(one['weaknesses'])}")
    for name in IGTF:
        files = [path.name for path in (POLICIES / name).glob("*.[0-9]")]
        report = ours("trust", POLICIES / name)
        wrong += unloaded(report, POLICIES / name, dict.fromkeys(files, ""))
    return wrong


def collect_authorities(folder: Path) -> dict[str, str]:
    """All authorities of all packages in one trust directory: file name -> subject as OpenSSL says it."""
    names: dict[str, str] = {}
    seen: set[bytes] = set()
    for file in sorted(POLICIES.glob("*/*.pem")):
        options = ["-noout", "-subject_hash", "-subject", "-nameopt", "compat"]
        answer = run("openssl", "x509", "-in", file, *options).stdout.splitlines()
        content = file.read_bytes()
        if content in seen:
            continue
        seen.add(content)
        stem = answer[0]
        number = sum(name.startswith(f"{stem}.") for name in names)
        names[f"{stem}.{number}"] = answer[1].removeprefix("subject=")
        shutil.copy(file, folder / f"{stem}.{number}")
        for ending in ["signing_policy", "namespaces"]:
            if (policy := file.with_suffix(f".{ending}")).exists():
                shutil.copy(policy, folder / f"{stem}.{ending}")
    return names


def unloaded(report: dict[str, Any], folder: Path, names: dict[str, str]) -> list[str]:
    """What of a trust directory can't be used; `names` are files and the subjects that OpenSSL says, where known."""
    wrong = [f"{folder}/{bad['name']}: {bad['reason']}" for bad in report["bad_files"]]
    loaded = {file: one for one in report["authorities"] for file in one["files"]}
    wrong += [f"{folder}/{name}: no authority" for name in names.keys() - loaded.keys()]
    for name, subject in names.items():
        one = loaded.get(name, {})
        if one and subject and one["subject"] != subject:
            wrong.append(f"{folder}/{name}: we say {one['subject']}, OpenSSL {subject}")
        for ending in ["signing_policy", "namespaces"]:
            if one and (folder / name).with_suffix(f".{ending}").exists() and not one[ending]:
                wrong.append(f"{folder}/{name}: its {ending} says nothing of it")
    return wrong


# --- all of them -----------------------------------------------------------------------------------

PEERS = [
    Peer("OpenSSL", ["openssl"], openssl_missing, compare_openssl),
    Peer(
        "libvomsapi",
        ["libvomsapi1v5", "voms-dev", "voms-clients", "libssl-dev", "faketime", "gcc"],
        voms_missing,
        compare_voms,
    ),
    Peer(
        "IGTF",
        ["openssl", *(f"igtf-policy-{name}" for name in IGTF)],
        igtf_missing,
        compare_igtf,
    ),
    caches.LIBCACHESIM,
    simgrid.SIMGRID,
    *tracer.TRACERS,
    *couplings.COUPLINGS,
    *jobs.JOBS,
]


def main() -> int:
    """Asks every peer; how many things were wrong decides the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--present", action="store_true", help="leave out peers that can't be installed"
    )
    only_present = parser.parse_args().present
    absent = [peer for peer in PEERS if peer.missing()]
    packages = [package for peer in absent for package in peer.packages]
    why = install(packages) if packages else ""
    wheels = [wheel for peer in absent for wheel in peer.wheels]
    why_wheels = install_wheels(wheels) if wheels else ""
    failures = 0
    for peer in PEERS:
        if missing := peer.missing():
            failures += not only_present
            sources = [("Debian", peer.packages, why), ("PyPI", peer.wheels, why_wheels)]
            wanted = "; ".join(f"{name}: {' '.join(all)}" for name, all, _ in sources if all)
            reasons = [reason for _, all, reason in sources if all and reason]
            reason = "; ".join(reasons) or "though its packages are installed"
            print(f"{peer.name}: LEFT OUT, {', '.join(missing)} missing, {reason} ({wanted})")
            continue
        wrong = peer.compare()
        failures += len(wrong)
        print(f"{peer.name}: {'as expected' if not wrong else f'{len(wrong)} unexplained'}")
        for line in wrong:
            print(f"  {line}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
