"""Nodes as network namespaces of this machine, each on a wire of its own to one switch, with `tc`'s limits."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from typing import Any

from benchmarks.running import BenchmarkError

__all__ = ["Nodes"]

WIRE = "wire"
BURST = "64kb"
RANDOM = 0xFFFFF000 + 56
"""Address at which a classic BPF program reads a random number of 32 bits (Linux, ``SKF_AD_RANDOM``)."""


class Nodes:
    """`count` namespaces with the addresses 198.18.0.1 and on. `rate` is of `tc`, per wire and direction: "1gbit".

    `delay_ms` is added to each packet if the kernel has netem (`delayed`). Needs root. Raises `BenchmarkError`.
    """

    def __init__(self, count: int, rate: str, delay_ms: float = 0.2) -> None:
        self.names = [f"rm-{os.getpid()}-{n}" for n in range(count)]
        self.hosts = [f"198.18.0.{n + 1}" for n in range(count)]
        self.switch = f"rm-{os.getpid()}-switch"
        self.delayed = False
        self._rate, self._delay_ms = rate, delay_ms

    def __enter__(self) -> Nodes:
        if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
            raise BenchmarkError(f"there is no {missing[0]}: install iproute2")
        try:
            self._ip("netns", "add", self.switch)
        except BenchmarkError as error:
            raise BenchmarkError(f"network namespaces are not permitted here: {error}") from error
        try:
            self._ip("-n", self.switch, "link", "add", "switch", "type", "bridge")
            self._ip("-n", self.switch, "link", "set", "switch", "up")
            for n, (name, host) in enumerate(zip(self.names, self.hosts, strict=True)):
                self._ip("netns", "add", name)
                ends = ("netns", name, "type", "veth", "peer", "name", f"port{n}", "netns", self.switch)
                self._ip("link", "add", WIRE, *ends)
                self._ip("-n", name, "addr", "add", f"{host}/24", "dev", WIRE)
                self._ip("-n", self.switch, "link", "set", f"port{n}", "master", "switch")
                for space, link in ((name, "lo"), (name, WIRE), (self.switch, f"port{n}")):
                    self._ip("-n", space, "link", "set", link, "up")
                self._limit(name, WIRE)
                self._limit(self.switch, f"port{n}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for name in (*self.names, self.switch):
            with suppress(BenchmarkError):
                self._ip("netns", "del", name)

    def _limit(self, space: str, link: str) -> None:
        tbf = ("tbf", "rate", self._rate, "burst", BURST, "latency", "20ms")
        try:
            netem = ("netem", "limit", "100000", "delay", f"{self._delay_ms}ms")
            self._ip("-n", space, "qdisc", "add", "dev", link, "root", "handle", "1:", *netem, tool="tc")
            self._ip("-n", space, "qdisc", "add", "dev", link, "parent", "1:", "handle", "2:", *tbf, tool="tc")
            self.delayed = True
        except BenchmarkError:
            self._ip("-n", space, "qdisc", "replace", "dev", link, "root", *tbf, tool="tc")

    def lose(self, share: float) -> None:
        """Drop this share of the packets on each wire, in both directions."""
        bound = int(share * 2**32)
        program = f"4,32 0 0 {RANDOM},53 0 1 {bound},6 0 0 {2**32 - 1},6 0 0 2"  # go on, or TC_ACT_SHOT
        for space, link in self._links():
            self._ip("-n", space, "qdisc", "add", "dev", link, "clsact", tool="tc")
            filters = ("-n", space, "filter", "add", "dev", link, "egress", "bpf", "da", "bytecode", program)
            self._ip(*filters, tool="tc")

    def _links(self) -> list[tuple[str, str]]:
        return [(name, WIRE) for name in self.names] + [(self.switch, f"port{n}") for n in range(len(self.names))]

    def sent(self, node: int) -> int:
        """Return the bytes that a node has sent, by the kernel's counter of its interface."""
        (link,) = json.loads(self._ip("-n", self.names[node], "-s", "-j", "link", "show", WIRE))
        return int(link["stats64"]["tx"]["bytes"])

    def start(self, node: int, *command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a process on a node."""
        return subprocess.Popen(("ip", "netns", "exec", self.names[node], *command), text=True, **options)

    @staticmethod
    def _ip(*args: str, tool: str = "ip") -> str:
        done = subprocess.run([tool, *args], capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchmarkError(f"{tool} {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout
