"""Two Rays in two network namespaces of this machine: nodes with addresses of their own, and a wire to listen to."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import of_kind
from tests.waiting import until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

HEAD, OTHER = "198.18.0.1", "198.18.0.2"
"""Addresses of the range for tests between networks (RFC 2544)."""
WIRE = "rm-wire"
TOKEN = secrets.token_hex(32)

LISTENER = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
wire.bind((sys.argv[1], 0))
print("listening", flush=True)
with open(sys.argv[2], "wb", buffering=0) as out:
    while True:
        out.write(wire.recv(1 << 17))
"""

MARK = b"rolemesh-payload"
ROLES = f"""
import numpy as np

from rolemesh import Batch, Split, operator

MARK = {MARK!r}


class Maker:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(returns=Split())
    def make(self):
        rows = 2 if self.ctx.step % 2 else 20_000  # in the frame; and in frames of its own
        return Batch({{"x": np.frombuffer(MARK * rows, dtype="S16")}})


class Taker:
    def __init__(self, ctx):
        self.ctx = ctx

    @operator(rows=Split())
    def take(self, rows):
        self.ctx.count(marks=int((rows["x"] == MARK).sum()))
"""
FLOW = "from rolemesh import flow\n\n\n@flow\ndef pairs(job):\n    job.taker.take(job.maker.make())\n"
JOB = """
name: wire
flow: flow.py:pairs
steps: 20
roles:
  maker: {use: function, options: {target: "roles.py:Maker"}}
  taker: {use: function, options: {target: "roles.py:Taker"}}
placement: {use: separation, options: {apart: [[maker, taker]]}}
engine: {options: {stop_grace_s: 2}}
"""


class Host:
    """A network namespace with one address. `tls` is a folder with Ray's certificate and key."""

    def __init__(self, name: str, address: str, tls: Path) -> None:
        self.name, self.address, self.tls = name, address, tls

    def inside(self, *command: str) -> list[str]:
        """`command`, to be run in here. Ray asks for a token, and encrypts what it sends itself."""
        env = {"AUTH_MODE": "token", "AUTH_TOKEN": TOKEN, "USE_TLS": "1", "TLS_SERVER_KEY": self.tls / "key.pem"}
        env |= dict.fromkeys(("TLS_SERVER_CERT", "TLS_CA_CERT"), self.tls / "cert.pem")
        return [
            "ip",
            "netns",
            "exec",
            self.name,
            "env",
            *(f"RAY_{name}={value}" for name, value in env.items()),
            *command,
        ]

    def pids(self) -> list[int]:
        return [int(pid) for pid in ip("netns", "pids", self.name).split()]

    def remove(self) -> None:
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.pids(), f"nothing runs in {self.name}")
        ip("netns", "del", self.name)


class NetJob(Job):
    """A job whose command line runs on a host."""

    host: Host

    def command(self, *args: str) -> list[str]:
        return self.host.inside(*super().command(*args))


def certify(folder: Path) -> None:
    """A certificate for the addresses of the hosts, which signs itself."""
    names = ",".join(f"IP:{address}" for address in (HEAD, OTHER, "127.0.0.1"))
    key, cert = (str(folder / f"{name}.pem") for name in ("key", "cert"))
    made = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=rolemesh")
    subprocess.run([*made, "-addext", f"subjectAltName={names}", "-keyout", key, "-out", cert], check=True)


def ip(*args: str) -> str:
    return subprocess.run(["ip", *args], check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, Host]]:
    """Two namespaces with a wire between them."""
    for tool in ("ip", "openssl"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no `{tool}` here, which this needs")
    tls = tmp_path_factory.mktemp("tls")
    certify(tls)
    first, second = (Host(f"rm-{os.getpid()}-{n}", address, tls) for n, address in enumerate((HEAD, OTHER)))
    try:
        ip("netns", "add", first.name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
    try:
        ip("netns", "add", second.name)
        ip("link", "add", WIRE, "netns", first.name, "type", "veth", "peer", "name", WIRE, "netns", second.name)
        for host in (first, second):
            ip("-n", host.name, "addr", "add", f"{host.address}/30", "dev", WIRE)
            for link in ("lo", WIRE):
                ip("-n", host.name, "link", "set", link, "up")
        yield first, second
    finally:
        for host in (second, first):
            host.remove()


@pytest.fixture(scope="module")
def cluster(hosts: tuple[Host, Host]) -> str:
    """A Ray of one node in each namespace; its address."""
    address = f"{HEAD}:6379"
    starts = ("--head", "--port=6379", "--include-dashboard=false")
    for host, joins in zip(hosts, (starts, (f"--address={address}",)), strict=True):
        command = (sys.executable, "-m", "ray.scripts.scripts", "start", *joins, f"--node-ip-address={host.address}")
        options = ("--num-cpus=1", "--disable-usage-stats")
        subprocess.run(host.inside(*command, *options), check=True, capture_output=True)
    return address


@pytest.fixture
def job(make_job: Callable[..., Job], hosts: tuple[Host, Host], cluster: str) -> Job:
    made = make_job("wire", ("--address", cluster))
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (made.folder / name).write_text(text)
    found = NetJob(made.folder, made.name, made.backend)
    found.host = hosts[0]
    return found


@pytest.fixture
def heard(hosts: tuple[Host, Host], tmp_path: Path) -> Iterator[Path]:
    """A file with all that goes over the wire, headers included."""
    out = tmp_path / "heard"
    command = hosts[1].inside(sys.executable, "-c", LISTENER, WIRE, str(out))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        assert listener.stdout.readline() == "listening\n"
        yield out
        listener.kill()


@pytest.mark.soak
def test_values_cross_from_host_to_host_and_nobody_on_the_wire_can_read_them(
    job: Job, hosts: tuple[Host, Host], heard: Path
) -> None:
    done = job.run()
    assert done.returncode == 0, done.stdout + done.stderr
    up = [event["data"] for event in of_kind(job, "agent_up")]
    assert {data["host"] for data in up} == {HEAD, OTHER}
    assert len({data["node"] for data in up}) == 2
    marks = sum(line["marks"] for line in job.metrics())
    assert marks == 10 * 20_000 + 10 * 2

    # That the ear is good: the same payload in the clear is heard.
    clear = b"in the clear: " + MARK
    speak = f"import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto({clear!r}, ({OTHER!r}, 9))"
    subprocess.run(hosts[0].inside(sys.executable, "-c", speak), check=True)
    until(lambda: clear in heard.read_bytes(), "the listener hears what is not encrypted")
    wire = heard.read_bytes()
    assert len(wire) > marks * len(MARK), "all values went over this wire"
    assert MARK not in wire.replace(clear, b"")
    assert b"client_secret" not in wire, "the job's keys go to the agents through Ray, which has TLS here"
