"""A node of the benchmark `weights_nodes`: a rank's endpoint and its transports, told what to do over its stdin.

``python -m benchmarks.jobs.weights_node RANK HOST FOLDER MEGABYTES``. Rank 0 is the trainer.
"""

from __future__ import annotations

import json
import select
import sys
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec

from rolemesh_dataplane.payload import Payload
from rolemesh_dataplane.shm_transport import ShmTransport
from rolemesh_dataplane.tcp_transport import TcpTransport
from rolemesh_dataplane.transports import Site, TransportKeys
from rolemesh_delta import DeltaTransport
from rolemesh_delta.messages import digest
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.mail import EndpointMail

BUCKET = 16 << 20
INLINE = 1 << 16
ROLES = "trainer", "sampler"
EDGES = range(4)
"""Two edges by tcp, at even numbers, and two by delta."""
TRANSPORTS = {"shm": ShmTransport, "tcp": TcpTransport, "delta": DeltaTransport}


class Model:
    """Weights in bfloat16, as bytes, of SmolLM2 (`megabytes` 0) or of random numbers; and what an optimizer does."""

    def __init__(self, megabytes: int) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        if megabytes:
            random = torch.Generator().manual_seed(1)
            count = max(1, (megabytes << 20) // (2 * 1024 * 1024))
            self._masters = [torch.randn(1024, 1024, generator=random) * 0.03 for _ in range(count)]
            self._random = random
            self._model = None
        else:
            self._model = self._real()
            self._masters = [each.data for each in self._model.parameters()]
        self._optimizer: Any = None

    def _real(self) -> Any:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        folder = Path(__file__).resolve().parents[2] / ".cache/SmolLM2-135M-Instruct"
        text = (folder.parents[1] / "README.md").read_text()
        self._tokens = AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt").input_ids[0]
        return AutoModelForCausalLM.from_pretrained(folder, dtype=self._torch.float32)

    def update(self, step: int, lr: float) -> None:
        """One step of AdamW; of random numbers, one of the size that Adam's first steps have."""
        if self._model is None:
            for each in self._masters:
                each += lr * self._torch.sign(self._torch.randn(each.shape, generator=self._random))
            return
        if self._optimizer is None:
            self._optimizer = self._torch.optim.AdamW(self._model.parameters(), lr=lr, weight_decay=0)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        rows = self._tokens[64 * step : 64 * step + 64][None]
        self._model(input_ids=rows, labels=rows).loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def weights(self) -> list[Any]:
        """Return the weights in the sampler's dtype."""
        return [each.to(self._torch.bfloat16) for each in self._masters]


class Node:
    """One rank's endpoint, with peers on other nodes."""

    def __init__(self, rank: int, host: str, folder: Path, keys: TransportKeys) -> None:
        shm = folder / f"shm{rank}"
        shm.mkdir()
        self.site = Site(ROLES[rank > 0], max(0, rank - 1), f"n{rank}", 0, host, str(folder), str(shm), keys)
        transports = {name: cls(cls.Options()) for name, cls in TRANSPORTS.items()}
        self.endpoint = Endpoint(self.site, transports=transports, local="shm", remote="tcp")
        self.endpoint.assign({edge: ("delta", "delta") for edge in EDGES if edge % 2})
        self.mail = EndpointMail(self.endpoint)
        say(addresses=self.endpoint.addresses)
        self.mail.connect([msgspec.convert(each, Peer) for each in told()["peers"]])


class Trainer(Node):
    """Sends its weights in buckets when the benchmark asks, and waits until all samplers have them."""

    def run(self, model: Model) -> None:
        """Do what stdin says, until it ends."""
        self.released: dict[tuple[int, int], int] = {}
        for edge in EDGES:
            self.mail.produce(edge, End(self, edge))
        step = 0
        say(ready=True)
        while (what := told())["do"] != "end":
            if what["do"] == "update":
                model.update(step, what["lr"])
                step += 1
                say(updated=step)
            else:
                say(**self.send(model.weights(), what["to"], what["edge"], what["step"]))

    def send(self, weights: list[Any], to: list[int], edge: int, step: int) -> dict[str, Any]:
        """Send to these samplers. Returns the seconds until the last one has released the value."""
        told_digest = digest_of(weights)
        began, items = monotonic(), []
        for chunk, bucket in enumerate(buckets(weights)):
            item = Payload({"w": bucket}, self.endpoint.pool, INLINE)
            item.users += 1
            items.append(item)
            self.mail.data(item, "sampler", to, edge, step, chunk, last=False)
        self.mail.data(None, "sampler", to, edge, step, len(items), last=True)
        while any(self.released.get((edge, each), -1) < step for each in to):
            self.endpoint.pump(0.05)
        seconds = monotonic() - began
        for item in items:
            item.free()
        return {"seconds": seconds, "digest": told_digest, "bytes": sum(each.nbytes for each in weights)}


class End:
    """The trainer's end of an edge."""

    def __init__(self, trainer: Trainer, edge: int) -> None:
        self._trainer, self._edge = trainer, edge

    def acked(self, consumer: int, generation: int, step: int) -> None:
        """See `Producer`."""
        self._trainer.released[self._edge, consumer] = step

    def asked(self, consumer: int, generation: int, from_step: int, released: int) -> None:
        """See `Producer`."""


class Sampler(Node):
    """Copies the buckets into its own tensors, releases the value, and prints its digest."""

    def run(self, model: Model) -> None:
        """Take values until stdin ends."""
        own = model.weights()
        for edge in EDGES:
            self.mail.consume(edge, Taker(self, own, edge))
        say(ready=True)
        while not select.select([sys.stdin], [], [], 0)[0]:
            self.endpoint.pump(0.2)


class Taker:
    """A sampler's end of an edge."""

    def __init__(self, sampler: Sampler, own: list[Any], edge: int) -> None:
        self._sampler, self._own, self._edge, self._at, self._chunk = sampler, own, edge, 0, 0

    def arrived(self, source: int, generation: int, step: int, chunk: int, last: bool, item: Any) -> None:
        """See `Consumer`."""
        assert chunk == self._chunk, "the chunks come in order"
        self._chunk += 1
        if item is not None:
            for each in item.value()["w"]:
                self._own[self._at].copy_(each)
                self._at += 1
            return
        assert self._at == len(self._own)
        self._at = self._chunk = 0
        self._sampler.mail.release("trainer", 0, self._edge, step)
        say(step=step, digest=digest_of(self._own))

    def flush(self) -> None:
        """See `Consumer`."""


def buckets(weights: list[Any]) -> list[list[Any]]:
    """Return the weights in lists of about `BUCKET` bytes."""
    found: list[list[Any]] = []
    size = BUCKET
    for each in weights:
        if size >= BUCKET:
            found.append([])
            size = 0
        found[-1].append(each)
        size += each.nbytes
    return found


def digest_of(weights: list[Any]) -> int:
    """Return a checksum of all bits."""
    import torch

    return digest([each.detach().contiguous().view(torch.uint8).numpy().data for each in weights])


def say(**what: Any) -> None:
    """Print a line for the benchmark."""
    print(json.dumps(what), flush=True)


def told() -> Any:
    """Return the next line of the benchmark."""
    line = sys.stdin.readline()
    return json.loads(line) if line else {"do": "end"}


def main() -> None:
    """Be the node that the command line says."""
    rank, host, folder, megabytes = sys.argv[1:]
    keys = msgspec.convert(told()["keys"], TransportKeys)
    node = (Sampler if int(rank) else Trainer)(int(rank), host, Path(folder), keys)
    node.run(Model(int(megabytes)))
    node.endpoint.close()


if __name__ == "__main__":
    main()
