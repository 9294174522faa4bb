"""Weights from a trainer's node to one sampler's node and to four, over limited wires: time, and bytes sent."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from typing import Any

import msgspec

from benchmarks.nodes import Nodes
from benchmarks.report import Report, ratios
from benchmarks.running import ROOT, BenchmarkError
from rolemesh_dataplane.curve import new_keys

SAMPLERS = 4
RATES = "1gbit", "100mbit"
"""Five nodes that encrypt 1 Gbit/s each keep eight cores busy; with fewer cores, the second rate shows the network."""
LOSS = 0.001
WAYS = {"tcp": 0, "delta": 1}
"""The edge to one sampler by each transport. The edge to all has the second next number."""


def measure(quick: bool) -> Report:
    """1 → 4 in at most 1.4 × the time of 1 → 1, differences in ⅛ of it; all ends are equal, bit for bit."""
    report = Report("weights_nodes", "weights trainer → samplers on other nodes", quick)
    real = (ROOT / ".cache/SmolLM2-135M-Instruct").is_dir() and not quick
    megabytes = 0 if real else 16 if quick else 256
    for rate in RATES:
        found: dict[str, list[float]] = {}
        with Nodes(SAMPLERS + 1, rate) as nodes, Cluster(nodes, megabytes) as cluster:
            nbytes = cluster.round("first", found)
            for lr in (1e-6, 1e-5):
                for _ in range(1 if quick else 5):
                    cluster.update(lr)
                    cluster.round(f"{lr:g}", found)
            nodes.lose(LOSS)
            for _ in range(1 if quick else 3):
                cluster.update(1e-6)
                cluster.round("loss", found)
        for way in WAYS:
            for when, words in WHEN.items():
                one, all_ = f"{way} 1 {when}", f"{way} {SAMPLERS} {when}"
                what = f"{rate}, {way}, {words}"
                report.row(f"{what}: 1 → 1", "s", found[one])
                report.row(f"{what}: 1 → {SAMPLERS}", "s", found[all_])
                report.row("  bytes that the trainer's node sends / of the value", "×", found[f"bytes {all_}"])
                if way == "delta" and when != "1e-05":
                    report.claim(f"{what}: 1 → {SAMPLERS} / 1 → 1", ratios(found[all_], found[one]), at_most=1.4)
        gain = ratios(found["tcp 1 1e-06"], found["delta 1 1e-06"])
        report.claim(f"{rate}, 1 → 1, lr 1e-6: tcp / delta", gain, at_least=8)
    report.settings = {"loss": LOSS, "model": "SmolLM2-135M" if real else "random numbers", "bytes": nbytes}
    report.settings["delay"] = "netem, 0.2 ms" if nodes.delayed else "none: the kernel has no netem"
    report.notes.append(
        "each node is a network namespace with a wire to a switch; tc's tbf limits each wire in both directions; the "
        "time is from the first bucket's encoding to the last sampler's release, when all is in its own tensors"
    )
    return report


WHEN = {"first": "the first value", "1e-06": "lr 1e-6", "1e-05": "lr 1e-5", "loss": f"lr 1e-6, {LOSS:.1%} lost"}


class Cluster:
    """The processes on the nodes."""

    def __init__(self, nodes: Nodes, megabytes: int) -> None:
        self._nodes, self._megabytes = nodes, megabytes
        self._step = 0

    def __enter__(self) -> Cluster:
        self._folder = tempfile.TemporaryDirectory(prefix="rolemesh-nodes-")
        module, pipes = "benchmarks.jobs.weights_node", {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._all = [
            self._nodes.start(
                n,
                sys.executable,
                "-m",
                module,
                str(n),
                host,
                self._folder.name,
                str(self._megabytes),
                cwd=ROOT,
                **pipes,
            )
            for n, host in enumerate(self._nodes.hosts)
        ]
        try:
            keys = msgspec.to_builtins(new_keys())
            for each in self._all:
                tell(each, keys=keys)
            at = [hear(each)["addresses"] for each in self._all]
            ranks = [("trainer", 0), *(("sampler", rank) for rank in range(SAMPLERS))]
            peers = [
                {"role": role, "rank": rank, "node": f"n{n}", "addresses": at[n]}
                for n, (role, rank) in enumerate(ranks)
            ]
            for n, each in enumerate(self._all):
                tell(each, peers=peers[:n] + peers[n + 1 :])
            for each in self._all:
                hear(each)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for each in self._all:
            each.kill()
            each.wait()
            for pipe in (each.stdin, each.stdout):
                assert pipe is not None
                pipe.close()
        self._folder.cleanup()

    def update(self, lr: float) -> None:
        """Train one step."""
        tell(self._all[0], do="update", lr=lr)
        hear(self._all[0])

    def round(self, when: str, found: dict[str, list[float]]) -> int:
        """Send the weights each way to one and to all samplers. Returns their bytes. Raises `BenchmarkError`."""
        for way, edge in WAYS.items():
            for samplers in (1, SAMPLERS):
                before = self._nodes.sent(0)
                to = [*range(samplers)]
                tell(self._all[0], do="send", to=to, edge=edge + 2 * (samplers > 1), step=self._step)
                done = hear(self._all[0])
                for each in to:
                    if hear(self._all[1 + each])["digest"] != done["digest"]:
                        raise BenchmarkError(f"{way}: sampler {each} has other bits than the trainer")
                found.setdefault(f"{way} {samplers} {when}", []).append(done["seconds"])
                share = (self._nodes.sent(0) - before) / done["bytes"]
                found.setdefault(f"bytes {way} {samplers} {when}", []).append(share)
        self._step += 1
        return int(done["bytes"])


def tell(process: subprocess.Popen[str], **what: Any) -> None:
    """Write a line to a node."""
    assert process.stdin is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> Any:
    """Return a node's next line. Raises `BenchmarkError` if it has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchmarkError(f"a node ended with {process.wait()}")
    return json.loads(line)
