"""The two halves of an engine: one computes prompts' KV caches, the other fetches them and generates. Imports vllm."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from rolemesh_vllm.engine import Engine, completion
from rolemesh_vllm.leases import LeaseOffice, Ticket
from rolemesh_vllm.options import PrefillOptions, VLLMOptions
from rolemesh_vllm.rows import Completion

__all__ = ["DecodeEngine", "PrefillEngine"]

FETCHED = "vllm:external_prefix_cache_hits"
FAILED = "vllm:nixl_num_failed_transfers"


class PrefillEngine(Engine):
    """Computes the KV caches of prompts and keeps each until it is fetched or its lease ends."""

    def __init__(
        self, model: Path, options: PrefillOptions, *, seed: int, cpus: float, share: float, host: str
    ) -> None:
        connector = _connector("kv_producer", {"kv_lease_duration": options.lease})
        with _side_channel(host), _same_cores():
            super().__init__(model, options, seed=seed, cpus=cpus, share=share, kv_transfer_config=connector)
        config = self.llm.llm_engine.vllm_config
        self._engine_id: str = config.kv_transfer_config.engine_id
        self._block_size: int = config.cache_config.block_size
        self._blocks: int = config.cache_config.num_gpu_blocks - 1  # vLLM keeps one for itself
        self._loads = 0
        self._office = LeaseOffice(host, self._engine_id, options.lease)

    def prefill(self, prompts: Sequence[Sequence[int]], version: int) -> list[Ticket | None]:
        """Return a ticket for each of `prompts` (token ids); None if there is no memory for its cache.

        The blocks of a finished prompt stay in use until a decode engine has fetched them, and it learns of them only
        when all prompts are finished. So prompts that do not fit at once are left to the decode engine.
        """
        engine, rows, free = self.llm.llm_engine, {}, self._blocks
        for row, ids in enumerate(prompts):
            free -= -(-len(ids) // self._block_size)
            if free < 0:
                break
            # The salt keeps caches of older weights, which may still wait to be fetched, from being taken for new ones.
            prompt = tokens_input(list(ids), cache_salt=str(self._loads))
            rows[_add(engine, next(self.llm.request_counter), prompt, _PREFILL.clone())] = row
        tickets: list[Ticket | None] = [None] * len(prompts)
        while engine.has_unfinished_requests():
            for output in engine.step():
                params = output.kv_transfer_params
                if output.finished and params:
                    self._office.grant(params["remote_request_id"])
                    tickets[rows[output.request_id]] = Ticket(
                        office=self._office.address,
                        engine=self._engine_id,
                        request=params["remote_request_id"],
                        version=version,
                        params=params,
                    )
        return tickets

    def close(self) -> None:
        """End the engine. Caches that were not fetched are lost."""
        self._office.close()
        super().close()

    def _forget_prefixes(self) -> None:
        self._loads += 1


class DecodeEngine(Engine):
    """Fetches prompts' KV caches from prefill engines and generates. It computes the caches that it cannot fetch."""

    def __init__(self, model: Path, options: VLLMOptions, *, seed: int, cpus: float, share: float) -> None:
        connector = _connector("kv_consumer", {})
        with _side_channel("127.0.0.1"), _same_cores():
            super().__init__(
                model, options, seed=seed, cpus=cpus, share=share, kv_transfer_config=connector, disable_log_stats=False
            )

    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        transfers: Sequence[dict[str, Any] | None],
        params: Sequence[SamplingParams],
        samples: int,
        progress: Callable[[int, int], object] | None = None,
    ) -> list[Completion]:
        """Return `samples` completions of each of `prompts` (token ids), with `params` prompt by prompt.

        `transfers` are vLLM's params of each prompt's cache, or None. The first sample fetches a cache; the others join
        when it is there, and share its blocks. `progress`: see `Engine.complete`.
        """
        done: dict[int, Completion] = {}
        waiting = set(range(len(prompts)))

        def add(row: int, transfer: dict[str, Any] | None) -> None:
            mine = params[row].clone()
            mine.output_kind = RequestOutputKind.CUMULATIVE
            if transfer is not None:
                mine.extra_args = {"kv_transfer_params": transfer}
            self.requests.add(prompts[row // samples], mine, partial(take, row))

        def take(row: int, output: Any) -> None:
            number = row // samples
            if number in waiting:
                waiting.remove(number)
                for sibling in range(1, samples):
                    add(number * samples + sibling, None)
            if output.finished:
                done[row] = completion(output.outputs[0])

        for number, transfer in enumerate(transfers):
            add(number * samples, transfer)
        while len(done) < len(params):
            self.requests.step()
            if progress is not None:
                progress(len(done), len(params))
        return [done[row] for row in range(len(params))]

    def counters(self) -> dict[str, float]:
        """Return the counts since the start: `kv_fetched_tokens`, whose prefill was fetched, and `kv_failed`, transfers
        that failed."""
        values = {metric.name: getattr(metric, "value", 0.0) for metric in self.llm.get_metrics()}
        return {"kv_fetched_tokens": values.get(FETCHED, 0.0), "kv_failed": values.get(FAILED, 0.0)}


_PREFILL = SamplingParams(
    max_tokens=1,
    temperature=0.0,
    output_kind=RequestOutputKind.FINAL_ONLY,
    extra_args={"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}},
)


def _add(engine: Any, number: int, prompt: Any, params: SamplingParams) -> str:
    name = str(number)
    engine.add_request(name, prompt, params)
    return name


def _connector(role: str, extra: dict[str, Any]) -> dict[str, Any]:
    config: dict[str, Any] = {
        "kv_connector": "NixlConnector",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }
    return config


@contextmanager
def _side_channel(host: str) -> Iterator[None]:
    """Reserve a port of `host` for the engine's handshakes until the engine listens there.

    vLLM announces the given number, so the port must be known before; and if the port is taken, vLLM waits forever.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as reserved:
        # Both this socket and vLLM's (zmq) reuse addresses, so vLLM's may listen on what this one only holds.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, 0))
        os.environ["VLLM_NIXL_SIDE_CHANNEL_HOST"] = host
        os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(reserved.getsockname()[1])
        yield


@contextmanager
def _same_cores() -> Iterator[None]:
    """Undo a setting of NixlConnector on CPUs: it binds the calling thread, and thereby its children, to one core."""
    cores = os.sched_getaffinity(0)
    yield
    for task in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(task), cores)
