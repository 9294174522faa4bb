"""The `vllm` workload, and its parts that `pd` uses too. It is light, so that the driver may import it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rolemesh.api.batch import Batch
from rolemesh.api.partition import Sharded, Split
from rolemesh.api.service import service
from rolemesh.api.workload import RankContext, Workload, operator, stable_seed
from rolemesh.errors import OptionsError, RolemeshError, raise_all
from rolemesh_torch.model_folder import CONFIG, damages
from rolemesh_vllm.checkpoint import check_adapted_layers, check_same_model, check_weight_files, in_pieces
from rolemesh_vllm.engine_args import (
    DERIVED,
    SINGLE,
    TENSOR_PARALLEL,
    check_divisible,
    check_engine,
    check_invariant,
    check_length,
    check_logprobs,
    check_temperature,
    is_cpu_build,
    known_engine_args,
    other_rotation,
)
from rolemesh_vllm.options import ONE_THREAD, EngineOptions, VLLMOptions
from rolemesh_vllm.rows import TICKETS, Completion, carried, fitted, join, pick, row_index

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob
    from rolemesh_vllm.engine import Engine

__all__ = ["EngineWorkload", "VLLMWorkload"]

VERSION = "__version__"
"""Entry of the input of `load_weights` with the update that the weights are from: int64, shape (1,)."""
AT_ONCE = 4096
"""Maximum number of calls of `sample` in a rank. The engine's `max_num_seqs` of them share a batch; others wait."""
LOOK_S = 0.02
"""Seconds after which calls that wait for a step look whether it has begun."""
SCALING = "__lora_scaling__"
"""Entry that marks the others as adapters: float32, shape (1,)."""

_ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
_CPU_ENV = {
    "TORCH_COMPILE_DISABLE": "1",  # seconds at the first logprobs, for nothing
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # two engines on a node would bind to the same core
    "VLLM_CPU_ATTN_SPLIT_KV": "0",  # where attention is split would depend on the batch and the threads
    "OMP_NUM_THREADS": ONE_THREAD,
    "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads slow every other rank on the node
    "GOMP_SPINCOUNT": "0",
}
_INVARIANT_ENV = {"VLLM_BATCH_INVARIANT": "1"}


def sources(job: CheckedJob, role: str, *operators: str) -> dict[str, Any]:
    """Return the roles whose values `role` takes in these operators, with their class `cls` and `options`. `job` is
    that of `check_flow`."""
    mine = {op.id for op in job.graph.ops if op.role == role and op.operator in operators}
    givers = [job.graph.ops[edge.src].role for edge in job.graph.edges if edge.dst in mine]
    return {giver: job.roles[giver] for giver in givers}


class EngineWorkload(Workload):
    """A vLLM engine in the rank's own process, or in children of it, that takes new weights while it runs.

    It is stateless: a restarted rank gets the last weights again. It works with any world size; each rank has its own
    engine.
    """

    Options = EngineOptions
    group = "independent"
    deterministic = is_cpu_build()
    preload: ClassVar[Sequence[str]] = (
        "vllm.entrypoints.llm",
        "vllm.v1.engine.llm_engine",
        "vllm.v1.engine.core",
        "vllm.v1.worker.cpu_worker" if is_cpu_build() else "vllm.v1.worker.gpu_worker",
        "vllm.v1.executor.uniproc_executor",
        "vllm.v1.executor.multiproc_executor",
        "vllm.model_executor.models.llama",
        "rolemesh_vllm.engine",
    )
    env: ClassVar[Mapping[str, str]] = _ENV | (_CPU_ENV if is_cpu_build() else {})
    derived: ClassVar[Mapping[str, str]] = DERIVED
    """Engine arguments that the workload sets, each with its source."""
    single: ClassVar[Mapping[str, str]] = SINGLE
    """Engine arguments that must be 1, each with the remedy."""

    @classmethod
    def process(cls, options: Any) -> tuple[Sequence[str], Mapping[str, str]]:
        """As declared. With `batch_invariant` on a GPU, vLLM reads a variable when its kernels are imported."""
        chosen = options.batch_invariant and not is_cpu_build()
        return cls.preload, cls.env | (_INVARIANT_ENV if chosen else {})

    @classmethod
    def varies(cls, options: Any) -> bool:
        """True on GPUs without `batch_invariant`: the bits of a token depend on its batch there."""
        return not (cls.deterministic or options.batch_invariant)

    @classmethod
    def longest_completion(cls, options: Any) -> int:
        """Return the number of tokens for which the engine's context must have room after a prompt."""
        return int(options.max_tokens)

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """Check that the model's folder is there and whole, that completions have room, and that the installed vllm has
        every engine argument."""
        errors: list[OptionsError] = []
        if not Path(options.model, CONFIG).is_file():
            missing = f"has no {CONFIG}" if Path(options.model).is_dir() else "does not exist"
            errors.append(
                OptionsError(
                    f"the model folder {options.model} {missing}",
                    where="model",
                    remedy="give the path of a Hugging Face model folder, relative to the job file",
                )
            )
        elif not (errors := damages(Path(options.model), weights=options.engine.get("load_format") != "dummy")):
            errors += check_divisible(Path(options.model), options.engine)
            errors += check_length(Path(options.model), options.engine, cls.longest_completion(options))
            errors += check_weight_files(Path(options.model), options.engine)
        known_engine_args()
        errors += check_invariant(options, cpu=is_cpu_build())
        raise_all([*errors, *check_engine(options.engine, cls.derived, cls.single)])

    @classmethod
    def check_flow(cls, options: Any, role: str, job: CheckedJob) -> None:
        """Check that the weights that the role takes belong to its model."""
        givers = sources(job, role, "load_weights")
        checks = (check_same_model, check_adapted_layers)
        raise_all(
            [e for giver, used in givers.items() for check in checks for e in check(options, giver, used.options)]
        )

    def setup(self, ctx: RankContext) -> None:
        self.ctx = ctx
        self.version = 0
        self._said: set[str] = set()
        parts = self.options.engine.get(TENSOR_PARALLEL, 1)
        if not is_cpu_build() and len(ctx.gpus) < parts and parts > 1:
            raise OptionsError(
                f"tensor_parallel_size {parts} needs as many GPUs, and the rank has {len(ctx.gpus)}",
                where=f"roles.{ctx.role}.options.engine.{TENSOR_PARALLEL}",
                remedy=f"set roles.{ctx.role}.resources.gpu to {parts}",
            )
        model = Path(ctx.base, self.options.model)
        if problem := other_rotation(model, self.options.engine):
            ctx.warn(problem)
        self.engine = self.build(model, seed=ctx.seed % 2**31)
        self.engine.label(self.version)

    def build(self, model: Path, *, seed: int) -> Engine:
        """Return the rank's engine."""
        from rolemesh_vllm.engine import Engine

        ctx = self.ctx
        return Engine(model, self.options, seed=seed, cpus=ctx.cpus, share=ctx.share, turns=ctx.turns)

    @operator(weights=Sharded(dim=None))
    def load_weights(self, weights: Mapping[str, Any]) -> None:
        """Load new weights in place: every tensor of the model's checkpoint by name, and `__version__`. With
        `__lora_scaling__` the values are adapters, as a trainer with `lora` returns them, to merge into the
        checkpoint's weights.

        A tensor may come in the pieces that the trainer's ranks hold (a list of `Shard`); they are joined one tensor at
        a time. Arrays may be read-only views of shared memory; nothing keeps them afterwards. The head of a model with
        tied embeddings may be left out. Raises `ValueError` for unknown or missing names and wrong shapes, before
        anything changes. Cached prefixes of the old weights are dropped.
        """
        start = time.perf_counter()
        self.settle()
        self.report_load()
        tensors = {name: in_pieces(value) for name, value in weights.items()}
        version, scaling = ([tensors.pop(name)[0].data[0]] if name in tensors else [] for name in (VERSION, SCALING))
        if scaling:
            self.engine.adapt(tensors, float(scaling[0]))
        else:
            self.engine.load(tensors)
        self.version = int(version[0]) if version else self.version + 1
        self.engine.label(self.version)
        self.ctx.metric(load_s=time.perf_counter() - start)

    def settle(self) -> None:
        """Prepare for new weights, which come next."""

    def report_load(self, prefix: str = "") -> None:
        """Report what the engine did since the last report."""
        found, preemptions = self.engine.requests.load.metrics(self.ctx.world_size)
        if found:
            self.ctx.metric(**{f"{prefix}{name}": value for name, value in found.items()})
            self.ctx.count(**{f"{prefix}preemptions": preemptions})

    def _prompts(self, prompts: Batch, max_tokens: int) -> tuple[Batch, list[list[int]], NDArray[np.int64]]:
        """Return the prompts that leave room for `max_tokens` more, or were cut, their token ids, and a number for
        each.

        Dropped and cut prompts are counted as `prompts_dropped` and `prompts_truncated`, and a warning is given once.
        """
        ctx, index = self.ctx, row_index(prompts, self.ctx.rank)
        if not prompts.rows:
            return prompts, [], index
        room = self.engine.room(max_tokens)

        def name(row: int) -> str:
            return f"the prompt with index {index[row]}" if "index" in prompts else f"prompt {row} of rank {ctx.rank}"

        rows = self.engine.tokens(prompts, name)
        found = fitted(rows, room, lambda: self.options.too_long, self.engine.opening, name)
        for what, which in (("dropped", found.dropped), ("truncated", found.truncated)):
            if not which:
                continue
            ctx.count(**{f"prompts_{what}": len(which)})
            if what not in self._said:
                self._said.add(what)
                first = which[0]
                ctx.warn(
                    f"{name(first)} has {len(rows[first])} tokens, and is {what}: {room}; "
                    f"further ones are counted only (prompts_{what})"
                )
        if found.truncated and TICKETS in prompts:  # what is kept for a prompt is of all of its tokens
            cut = set(found.truncated)
            prompts = prompts | {TICKETS: [None if row in cut else one for row, one in enumerate(prompts[TICKETS])]}
        if not found.dropped:
            return prompts, found.ids, index
        kept = [row for row, ids in enumerate(found.ids) if ids]
        left = Batch({name: pick(column, kept) for name, column in prompts.items()}, rows=len(kept))
        return left, [found.ids[row] for row in kept], index[kept]

    def offload(self) -> None:
        """Put the engine to sleep, if the platform supports it."""
        self.engine.sleep()

    def onload(self) -> None:
        """Wake the engine."""
        self.engine.wake()

    def teardown(self) -> None:
        """Shut the engine down."""
        if hasattr(self, "engine"):
            self.engine.close()


class VLLMWorkload(EngineWorkload):
    """Generates completions with a vLLM engine of the rank's own, and takes new weights while it runs."""

    Options = VLLMOptions
    _loaded: asyncio.Future[None] | None = None

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """As for any engine; also check that vLLM takes the temperature as it is, and that the engine's
        log-probabilities are those of the sampled distribution."""
        errors: list[RolemeshError] = [*check_logprobs(options), *check_temperature(options)]
        try:
            super().check(options, world_size)
        except RolemeshError as error:
            errors += getattr(error, "errors", (error,))
        raise_all(errors)

    @operator(prompts=Split(), returns=Split())
    def generate(self, prompts: Batch) -> Batch:
        """Return `samples` completions of each prompt: rows = prompts × samples, prompt-major.

        In:

        - `messages` (a list of {role, content} dicts per row), `prompt` (str) or `prompt_ids` (`Ragged` of token ids).
          The chat template also gets `tools` and `chat_template_kwargs`, columns here or in `row`. A last message of
          the assistant is continued.
        - `index`: optional int64, unique per prompt in the step; with it, samples do not depend on the rank that makes
          them.

        Out: every column but `prompt_ids`, repeated, and

        - `prompt_ids`, `completion_ids`: `Ragged` int32.
        - `logprobs`: `Ragged` float32, of each token under the distribution it was sampled from: after temperature and
          top_p.
        - `text`: the completion.
        - `group`: int64, the prompt's `index`.
        - `weight_version`: int64.
        - `finish_reason`: stop or length.
        - `sampling`: a mapping per row: the temperature, and the other parameters of the distribution.

        A prompt that leaves no room for `max_tokens` has no rows, unless `too_long` says otherwise.
        """
        return self._complete(prompts, self.options.samples, "")

    @operator(prompts=Split(), returns=Split())
    def evaluate(self, prompts: Batch) -> Batch:
        """As `generate`, but with one greedy completion of each prompt, without top_p, top_k and min_p."""
        return self._complete(prompts, 1, "eval_", temperature=0.0)

    @service(concurrency=AT_ONCE, recorded=True)
    async def sample(self, prompt_ids: Any, params: Mapping[str, Any]) -> dict[str, Any]:
        """Sample one turn after `prompt_ids` (int32 array), in the same batches as all other calls of the rank.

        `params`: `max_tokens`, `temperature`, `top_p`, `top_k`, `min_p`, `stop`, `stop_token_ids`, `seed`, and others
        as ``vllm.SamplingParams`` names them. The role's options do not count. A temperature above 0 needs a seed.
        The same prompt, parameters and weights have the same answer:

        - `ids`: int32, the sampled tokens.
        - `logprobs`: float32, of each token under the distribution it was sampled from.
        - `versions`: int64, the version of the weights that made the token.
        - `finish`: "stop", or "length" at `max_tokens` and at the end of the engine's context.
        - `seconds`: the time in the engine; absent if there was no room.
        - `waited`: the seconds until the weights of the caller's step were loaded; 0 unless `update` is drain.

        A prompt that leaves no room has no tokens and the end "length". Raises `ValueError` for an empty prompt and for
        parameters that vLLM refuses, `RuntimeError` for weights that are not numbers.
        """
        caller, asked = self.ctx.called_by, time.monotonic()
        while caller is not None and self.options.update == "drain" and caller.step > self.ctx.step:
            await self._next_step()
        waited = time.monotonic() - asked
        return await self.engine.sample(prompt_ids, params) | {"waited": waited}

    async def _next_step(self) -> None:
        """Wait until new weights are loaded, or for a moment: the step may also pass without."""
        self._loaded = self._loaded or asyncio.get_running_loop().create_future()
        await asyncio.wait([self._loaded], timeout=LOOK_S)

    def settle(self) -> None:
        """Let running calls of `sample` end with the old weights, unless they may go on with the new ones."""
        if self.options.update == "drain":
            self.ctx.wait_for_callers()
        if self.options.update != "between_tokens":
            self.engine.sampler.finish()
        if self._loaded is not None and not self._loaded.done():
            self._loaded.set_result(None)
        self._loaded = None

    @classmethod
    def varies(cls, options: VLLMOptions) -> bool:
        """As for any engine; also true where the time of an update decides which weights make a token."""
        return super().varies(options) or options.update != "drain"

    @classmethod
    def sampling(cls, options: VLLMOptions, operator: str) -> dict[str, Any] | None:
        """Return the parameters of the distribution that an operator samples from; None if it samples nothing."""
        if operator not in ("generate", "evaluate"):
            return None
        return options.sampling(greedy=operator == "evaluate")

    @classmethod
    def completions(cls, options: VLLMOptions, operator: str) -> int | None:
        """Return the number of completions of each prompt that an operator makes; None if it samples nothing."""
        return {"generate": options.samples, "evaluate": 1}.get(operator)

    def _complete(self, prompts: Batch, samples: int, prefix: str, **instead: Any) -> Batch:
        from rolemesh_vllm.engine import sampling

        ctx, o = self.ctx, self.options
        prompts, ids, index = self._prompts(prompts, o.max_tokens)
        base = ctx.seed if o.seed is None else o.seed
        seeds = [stable_seed(base, ctx.step, int(i), sample) for i in index for sample in range(samples)]
        completions = self.run(prompts, ids, sampling(o, seeds, **instead), samples)
        ctx.count(
            generated_tokens=sum(len(c.ids) for c in completions), prompt_tokens=samples * sum(len(row) for row in ids)
        )
        self.report_load(prefix)
        for each in completions:  # ranks have different numbers of them
            ctx.metric(**{f"{prefix}completion_length": len(each.ids)})
        said = o.sampling(greedy=bool(instead))
        return join(carried(prompts), ids, index, completions, samples=samples, version=self.version, sampling=said)

    def run(self, prompts: Batch, ids: list[list[int]], params: Sequence[Any], samples: int) -> list[Completion]:
        """Return `samples` completions of each of `ids`, with `params` prompt by prompt. `prompts` are the operator's
        rows."""
        return self.engine.complete([row for row in ids for _ in range(samples)], params, self.ctx.progress)
