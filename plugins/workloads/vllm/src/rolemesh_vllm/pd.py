"""The workloads `vllm-prefill` and `vllm-decode` as the kernel sees them: light, so that the driver may import them."""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rolemesh.api.batch import Batch, Ragged
from rolemesh.api.partition import Split
from rolemesh.api.workload import operator
from rolemesh.errors import OptionsError, RolemeshError, raise_all
from rolemesh_vllm.checkpoint import check_same_model
from rolemesh_vllm.engine_args import DERIVED, SINGLE, TENSOR_PARALLEL, is_cpu_build
from rolemesh_vllm.leases import claim
from rolemesh_vllm.options import PrefillOptions, VLLMOptions
from rolemesh_vllm.rows import TICKETS, Completion, carried
from rolemesh_vllm.workload import EngineWorkload, VLLMWorkload, sources

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob
    from rolemesh_vllm.pd_engine import DecodeEngine, PrefillEngine

__all__ = ["VLLMDecode", "VLLMPrefill"]

_ENV = {"UCX_RCACHE_MAX_UNRELEASED": "1024"}  # as vLLM would, but before nixl is imported
_CPU_ENV = {"UCX_TLS": "tcp,self,sysv,posix,cma"}
_MODULES = ("nixl._api", "rolemesh_vllm.pd_engine")


class _Half(EngineWorkload):
    """The requirements of both halves: nixl, and its environment."""

    env: ClassVar[Mapping[str, str]] = EngineWorkload.env | _ENV | (_CPU_ENV if is_cpu_build() else {})
    preload: ClassVar[Sequence[str]] = (*EngineWorkload.preload, *_MODULES)
    derived: ClassVar[Mapping[str, str]] = DERIVED | {"kv_transfer_config": "the role's half of the work"}
    single: ClassVar[Mapping[str, str]] = SINGLE | {
        TENSOR_PARALLEL: "leave it 1 and give the role a larger world_size; the workload `vllm` can be spread so"
    }

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """As `vllm`, and check that nixl is installed."""
        if importlib.util.find_spec("nixl") is None:
            raise OptionsError(
                "vllm-prefill and vllm-decode move KV caches with nixl, which is not installed",
                remedy="pip install 'rolemesh-vllm[pd]' (or, to keep the other CUDA's build out, pip install --no-deps "
                "nixl nixl-cu12)",
            )
        super().check(options, world_size)


class VLLMPrefill(_Half):
    """Computes the KV caches of prompts, for ranks of `vllm-decode` to fetch."""

    Options = PrefillOptions
    engine: PrefillEngine

    @classmethod
    def longest_completion(cls, options: PrefillOptions) -> int:
        """Return 1: vLLM computes no prompt without generating a token."""
        return 1

    def build(self, model: Path, *, seed: int) -> PrefillEngine:
        """Return the rank's engine."""
        from rolemesh_vllm.pd_engine import PrefillEngine

        host = self.options.host or ("127.0.0.1" if self.ctx.node == "local" else _own_address())
        return PrefillEngine(model, self.options, seed=seed, cpus=self.ctx.cpus, share=self.ctx.share, host=host)

    @operator(prompts=Split(), returns=Split())
    def prefill(self, prompts: Batch) -> Batch:
        """Compute the KV cache of each prompt and keep it for `lease` seconds.

        In: `messages`, `prompt` or `prompt_ids`, as in `generate` of `vllm-decode`. Out: the other columns,
        `prompt_ids` (`Ragged` int32) and `kv_transfer` (a dict per row with the place of its cache; None if the engine
        had no memory for it). `generate` and `evaluate` of `vllm-decode` take this result.
        """
        start = time.perf_counter()
        prompts, ids, _ = self._prompts(prompts, 1)
        tickets = self.engine.prefill(ids, self.version)
        kept = [ticket is not None for ticket in tickets]
        self.ctx.count(
            prefill_tokens=sum(len(row) for row, mine in zip(ids, kept, strict=True) if mine),
            prefill_left=kept.count(False),
        )
        self.ctx.metric(prefill_s=time.perf_counter() - start)
        added = {"prompt_ids": Ragged.from_rows(ids, dtype=np.int32), TICKETS: tickets}
        return Batch(carried(prompts) | added, rows=len(ids))


class VLLMDecode(_Half, VLLMWorkload):
    """Generates from KV caches that ranks of `vllm-prefill` have computed.

    A prompt whose cache is not available any more is computed here: it came late, was replayed after a kill, or its
    prefill rank died.
    """

    engine: DecodeEngine

    def build(self, model: Path, *, seed: int) -> DecodeEngine:
        """Return the rank's engine."""
        from rolemesh_vllm.pd_engine import DecodeEngine

        return DecodeEngine(model, self.options, seed=seed, cpus=self.ctx.cpus, share=self.ctx.share)

    @classmethod
    def check_flow(cls, options: Any, role: str, job: CheckedJob) -> None:
        """As `vllm`; also check that the ranks that make the caches have the same model and render prompts alike."""
        super().check_flow(options, role, job)
        found = sources(job, role, "generate", "evaluate").items()
        halves = {half: used.options for half, used in found if issubclass(used.cls, VLLMPrefill)}
        raise_all([error for half, theirs in halves.items() for error in check_halves(options, half, theirs)])

    def run(self, prompts: Batch, ids: list[list[int]], params: Sequence[Any], samples: int) -> list[Completion]:
        """As `vllm`. The column `kv_transfer`, if there is one, has the places of the prompts' caches."""
        tickets = prompts[TICKETS] if TICKETS in prompts else [None] * len(ids)
        transfers = claim(tickets, self.version)
        before = self.engine.counters()
        completions = self.engine.decode(ids, transfers, params, samples, self.ctx.progress)
        after = self.engine.counters()
        self.ctx.count(kv_computed_here=transfers.count(None), **{name: after[name] - before[name] for name in after})
        return completions


def check_halves(options: VLLMOptions, role: str, prefill: PrefillOptions) -> list[OptionsError]:
    """Return the settings that differ, but must not, between a decode role and the `role` that makes its caches."""
    errors = check_same_model(options, role, prefill)
    for name in ("chat_template", "dtype", "batch_invariant"):
        one, other = getattr(options, name), getattr(prefill, name)
        if one != other:
            what = f"{name} is {one}, and {other} in {role}, which makes the caches that this role fetches"
            errors.append(OptionsError(what, where=name, remedy=f"set both to the same, e.g. here {other}"))
    return errors


def _own_address() -> str:
    """Return the address of this machine's default route. Nothing is sent."""
    routes = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}  # for documentation: RFC 5737, RFC 3849
    for family, address in routes.items():
        with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    raise RolemeshError(
        "this machine has no default route", remedy="set `host` to the address of each prefill rank's node"
    )
