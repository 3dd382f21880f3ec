"""Hosts files and addresses."""

from pathlib import Path

import pytest

from exoskel.hosts import HostAddress, parse_address, read_hosts


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


def test_errors_name_the_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_text("lab1\nlab2:port\n")
    with pytest.raises(ValueError, match=r"hosts\.txt, line 2: got port 'port'"):
        read_hosts(path)
    path.write_text("# nobody\n")
    with pytest.raises(ValueError, match="got no address"):
        read_hosts(path)
