"""Restarts of bare Ray actors: a driver calls their steps, and one of them is killed; for `failover`.

``python -m benchmarks.actor_restarts ADDRESS KILLS`` prints ``{"single": [ActorKill, …], "heavy": […]}``: a process of
its own, because Ray tells a driver's standard output of each actor that has died.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from types import TracebackType
from typing import NamedTuple

__all__ = ["ActorKill", "BareActors"]

STEPS = 10
"""Number of steps between two kills."""


class ActorKill(NamedTuple):
    """`seconds` from SIGKILL to the next step finished by the actor's new process, with `load_s` of its own set-up.

    `lost_steps` is what the new process no longer knows of.
    """

    seconds: float
    load_s: float
    lost_steps: int


class BareActors:
    """Actors with ``max_restarts=-1, max_task_retries=-1`` on the Ray at `address`, as a fresh driver of it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> BareActors:
        import ray

        self._ray = ray
        ray.init(address=self._address, log_to_driver=False, logging_level="ERROR")
        actor = ray.remote(num_cpus=0.1, max_restarts=-1, max_task_retries=-1)(Count)
        self._actors = {"single": actor.remote(), "heavy": actor.remote("torch")}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ray.shutdown()

    def kill(self, name: str) -> ActorKill:
        """SIGKILL ``single`` or ``heavy`` (which imports torch) after some more steps of both."""
        for _ in range(STEPS):
            before = {who: self._ray.get(actor.step.remote()) for who, actor in self._actors.items()}
        pid, had, _ = before[name]
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        again = pid
        while again == pid:
            again, has, load_s = self._ray.get(self._actors[name].step.remote())
        return ActorKill(time.monotonic() - began, load_s, had + 1 - has)


class Count:
    """Counts its steps: that is its state."""

    def __init__(self, imports: str = "") -> None:
        began = time.monotonic()
        if imports:
            importlib.import_module(imports)
        self.steps, self.load_s = 0, time.monotonic() - began

    def step(self) -> tuple[int, int, float]:
        """Its process, how many steps it has made, and how long its set-up took."""
        self.steps += 1
        return os.getpid(), self.steps, self.load_s


def main(address: str, kills: int) -> dict[str, list[ActorKill]]:
    """Kill both actors in turns, each so often."""
    found: dict[str, list[ActorKill]] = {"single": [], "heavy": []}
    with BareActors(address) as actors:
        for _ in range(kills):
            for name, into in found.items():
                into.append(actors.kill(name))
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))), flush=True)
