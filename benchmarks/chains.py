"""The chain as each contender runs it; what `chain` and `chain_large` share."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Self

import numpy as np

from benchmarks.running import JOBS, run_job, times

__all__ = ["RayChains", "bare_steps", "our_steps"]


def our_steps(nbytes: int, steps: int, *overrides: str) -> float:
    """Steps/s of a job on the local backend, from a tenth of its steps to the last."""
    warm = max(1, steps // 10)
    job = (f"steps={steps}", f"roles.source.options.kwargs.nbytes={nbytes}", f"roles.sink.options.kwargs.warm={warm}")
    with run_job(JOBS / "chain.yaml", *job, *overrides) as run_dir:
        noted = times(run_dir)["sink-0"]
    return float(noted["steps"] / noted["seconds"])


def bare_steps(nbytes: int, steps: int) -> float:
    """Steps/s of the same three functions, called in this process."""
    source, relay, sink = Stage(nbytes), Stage(0), Stage(0)
    began = perf_counter()
    for step in range(steps):
        sink.take(relay.hand(source.make(step)))
    return steps / (perf_counter() - began)


class Stage:
    """Any of the three stages; the same bodies as in ``jobs/roles.py``."""

    def __init__(self, nbytes: int) -> None:
        self.value = np.zeros(nbytes, np.uint8)
        self.sum = 0

    def make(self, step: int) -> np.ndarray:
        return self.value

    def hand(self, value: np.ndarray) -> np.ndarray:
        return value

    def take(self, value: np.ndarray) -> int:
        self.sum += int(value[0]) + int(value[-1])
        return self.sum


class RayChains:
    """A Ray on this machine with three warm actors for the ref chain.

    Each turn makes its own Compiled Graph. Between executions its actors spin on their channels, which would
    take both cores from the next turn.
    """

    IN_FLIGHT = 10

    def __init__(self, nbytes: int, in_flight: int = IN_FLIGHT) -> None:
        self.nbytes, self.in_flight = nbytes, in_flight

    def __enter__(self) -> Self:
        os.environ.setdefault("RAY_CGRAPH_get_timeout", "300")
        os.environ.setdefault("RAY_CGRAPH_submit_timeout", "300")
        os.environ.setdefault("RAY_CGRAPH_teardown_timeout", "3")  # loops with values above 1 MB may not end
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        self._ray = ray
        ray.init(address="local", include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        self._actors = self._stages()
        self.ref_steps(20, 4)
        return self

    def __exit__(self, *error: object) -> None:
        self._ray.shutdown()

    def _stages(self) -> list[Any]:
        actor = self._ray.remote(num_cpus=0)(Stage)
        return [actor.remote(nbytes) for nbytes in (self.nbytes, 0, 0)]

    def best_window(self, windows: Sequence[int], steps: int) -> int:
        """The number of chains in flight with which the ref chain is fastest."""
        return max(windows, key=lambda window: self.ref_steps(steps, window))

    def ref_steps(self, steps: int, window: int) -> float:
        """Steps/s when refs are passed from actor to actor and the driver waits only for the oldest of `window`."""
        source, relay, sink = self._actors
        flying: deque[Any] = deque()
        began = perf_counter()
        for step in range(steps):
            if len(flying) >= window:
                self._ray.get(flying.popleft())
            flying.append(sink.take.remote(relay.hand.remote(source.make.remote(step))))
        self._ray.get(list(flying))
        return steps / (perf_counter() - began)

    def graph_steps(self, steps: int) -> float:
        """Steps/s of a warm Compiled Graph with as many executions in flight as it was compiled for."""
        from ray.dag import InputNode

        source, relay, sink = self._stages()
        with InputNode() as step:
            dag = sink.take.bind(relay.hand.bind(source.make.bind(step)))
        graph = dag.experimental_compile(
            _buffer_size_bytes=self.nbytes + (1 << 20), _max_inflight_executions=self.in_flight
        )
        try:
            self._execute(graph, 4 * self.in_flight)
            began = perf_counter()
            self._execute(graph, steps)
            return steps / (perf_counter() - began)
        finally:
            graph.teardown(kill_actors=True)

    def _execute(self, graph: Any, steps: int) -> None:
        flying: deque[Any] = deque()
        for step in range(steps):
            if len(flying) >= self.in_flight:
                self._ray.get(flying.popleft())
            flying.append(graph.execute(step))
        while flying:
            self._ray.get(flying.popleft())
