"""Hosts files and addresses."""

from pathlib import Path
from typing import Any

import pytest

from exoskel.hosts import HostAddress, parse_address, parse_address_alone, read_hosts


@pytest.mark.parametrize(
    ("text", "host", "port", "name"),
    [
        ("lab1", "lab1", 7601, "lab1"),
        ("lab1:80", "lab1", 80, "lab1"),
        ("tcp://0.0.0.0:0", "0.0.0.0", 0, "0.0.0.0"),
        ("[::1]", "::1", 7601, "::1"),
        ("[2001:db8::1]:80", "2001:db8::1", 80, "2001:db8::1"),
        (" 127.0.0.1:7601   lab1.example.org ", "127.0.0.1", 7601, "lab1.example.org"),
    ],
)
def test_addresses(text: str, host: str, port: int, name: str) -> None:
    address = parse_address(text)
    assert address == HostAddress(host, port, name)
    assert parse_address(f"{address} {name}") == address


def test_words_after_the_name_are_for_whoever_starts_the_worker() -> None:
    options = (("slots", "4"), ("python", "/opt/bin/python3=1"))
    line = "127.0.0.1:5 lab1 slots=4 python=/opt/bin/python3=1"
    assert parse_address(line) == HostAddress("127.0.0.1", 5, "lab1", options)
    assert parse_address("lab1 slots=4").name == "lab1"
    assert parse_address("unix:/run/a=b").name
    with pytest.raises(ValueError, match="for a Unix socket"):
        parse_address("unix:/run/socket slots=4")


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":80",
        "lab1:x",
        "lab1:-1",
        "lab1:65536",
        "::1",
        "2001:db8::1:80",
        "[::1",
        "[::1]80",
        "udp://a:1",
        "a b c",
        "-oProxyCommand=x",
        "a/b",
        "lab1:٣",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="got "):
        parse_address(text)


def test_hosts_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("# ours\nlab1:7601\n\nlab2   # the new one\n127.0.0.1:5 lab3\n")
    assert [str(host) for host in read_hosts(path)] == ["lab1:7601", "lab2:7601", "127.0.0.1:5"]
    assert read_hosts(["a:1", "b"])[1] == HostAddress("b", 7601, "b")


def test_a_byte_order_mark_is_no_part_of_an_address(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("\ufefflab1\n", encoding="utf-8")
    assert read_hosts(path) == [HostAddress("lab1", 7601, "lab1")]


def test_one_address_is_one_worker(tmp_path: Path) -> None:
    lines = ["10.0.0.1 lab1", "lab2", "10.0.0.1:7601 lab1"]
    assert [str(host) for host in read_hosts(lines)] == ["10.0.0.1:7601", "lab2:7601"]
    path = tmp_path / "hosts.txt"
    for again, said in (
        ("lab9", "got 10.0.0.1:7601 as lab9, and as lab1 in line 1"),
        ("lab1 slots=3", "got 10.0.0.1:7601 with other options than in line 1"),
    ):
        path.write_text(f"10.0.0.1 lab1\nlab2\n10.0.0.1:7601 {again}\n")
        with pytest.raises(ValueError, match=rf"hosts\.txt, line 3: {said}"):
            read_hosts(path)


def test_an_address_is_no_name() -> None:
    with pytest.raises(ValueError, match=r'got "127\.0\.0\.1:17611" as the name of .*"node1"'):
        parse_address("node1 127.0.0.1:17611")


def test_what_would_be_lost_behind_an_address_is_refused() -> None:
    for text in ("127.0.0.1:5 head", "127.0.0.1:5 slots=4", "unix:/run/socket head"):
        with pytest.raises(ValueError, match=r"expected an address and nothing behind it: "):
            parse_address_alone(text)
    assert parse_address_alone("127.0.0.1", 5) == parse_address("127.0.0.1:5")


def test_an_address_is_a_text() -> None:
    pair: Any = ("lab1:7601", "lab1.example.org")
    with pytest.raises(TypeError, match=r"address 2: got \('lab1:7601', 'lab1\.example\.org'\)"):
        read_hosts(["lab0", pair])


def test_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("lab1\nlab2:port\n")
    with pytest.raises(ValueError, match=r'hosts\.txt, line 2: got port "port"'):
        read_hosts(path)
    path.write_bytes("lab1\n# grüße\n".encode() + b"lab2 \xfc\n")
    with pytest.raises(ValueError, match=r"hosts\.txt, line 3: got bytes that are no UTF-8"):
        read_hosts(path)
    path.write_text("# nobody\n")
    with pytest.raises(ValueError, match="got no address"):
        read_hosts(path)
