"""The vLLM engine of one rank. Importing this imports vllm and torch."""

from __future__ import annotations

import gc
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import LLM, SamplingParams
from vllm.config import set_current_vllm_config
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from rolemesh.api.batch import Batch, Shard
from rolemesh.errors import RolemeshError
from rolemesh_torch.chats import chat_text, plain_text, template_columns
from rolemesh_vllm.adapters import check_adapters, merged
from rolemesh_vllm.buckets import in_buckets
from rolemesh_vllm.checkpoint import HEAD, checkpoint_shapes, complete_names, in_pieces, tied_embedding
from rolemesh_vllm.engine_args import TENSOR_PARALLEL, default_engine_args, is_cpu_build
from rolemesh_vllm.invariant import make_batches_invariant
from rolemesh_vllm.options import NUCLEUS, ONE_THREAD, PENALTIES, EngineOptions, VLLMOptions
from rolemesh_vllm.requests import Requests
from rolemesh_vllm.rows import Completion, Room, fitted, prompt_column
from rolemesh_vllm.sampler import Sampler
from rolemesh_vllm.transfer import BACKEND, without_reload_warnings
from rolemesh_vllm.turns import answer_of, no_room, shape_of, token_ids
from rolemesh_vllm.workers import RankExecutor, several_processes

__all__ = ["Engine", "as_tensor", "completion", "sampling"]


class Engine:
    """A vLLM engine: takes token ids, returns completions, replaces weights in place.

    It runs in this process, or with ``tensor_parallel_size`` above 1 in as many child processes.
    """

    def __init__(
        self,
        model: Path,
        options: EngineOptions,
        *,
        seed: int,
        cpus: float,
        share: float = 1.0,
        turns: bool = False,
        **extra: Any,
    ) -> None:
        """`share` and `turns` are those of the rank's devices. `extra` are arguments of vLLM's engine that the workload
        itself sets."""
        self.options = options
        self._model = model
        cpu = is_cpu_build()
        args = default_engine_args(model, cpu=cpu, share=share, turns=turns, invariant=options.batch_invariant)
        args |= {"weight_transfer_config": {"backend": BACKEND}} | options.engine | extra
        if args.get(TENSOR_PARALLEL, 1) > 1:
            args |= several_processes()
        if cpu:
            # Without chunked prefill a prompt must fit in one batch.
            args.setdefault("max_num_batched_tokens", max(2048, args["max_model_len"]))
            if options.threads or os.environ.get("OMP_NUM_THREADS", ONE_THREAD) == ONE_THREAD:
                torch.set_num_threads(options.threads or max(1, int(cpus / args.get(TENSOR_PARALLEL, 1))))
            make_batches_invariant()
        dtype = options.dtype or ("float32" if cpu else "auto")
        scratch = Path(tempfile.gettempdir())
        before = set(scratch.glob("vllm_dist_*"))
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # whatever the user has set: the rank itself is the engine
        self.llm = LLM(model=str(model), dtype=dtype, seed=seed, **args)
        without_reload_warnings()
        self._rendezvous_files = set(scratch.glob("vllm_dist_*")) - before
        executor = self.llm.llm_engine.model_executor
        self._workers = executor if isinstance(executor, RankExecutor) else None
        self.tokenizer = self.llm.get_tokenizer()
        self.requests = Requests(self.llm, self._deaths_named)
        self.sampler = Sampler(self.requests)
        config = self.llm.llm_engine.model_config
        self.max_model_len: int = config.max_model_len
        self._shapes = checkpoint_shapes(model)
        self._tied = tied_embedding(self._shapes) if config.hf_text_config.tie_word_embeddings else None

    def encode(self, prompts: Batch, max_tokens: int) -> list[list[int]]:
        """As `tokens`, for prompts that leave room for `max_tokens` more; the option `too_long` decides about the
        others."""
        found = fitted(self.tokens(prompts), self.room(max_tokens), lambda: self.options.too_long, self.opening)
        return found.ids

    def room(self, max_tokens: int) -> Room:
        """Return the room for prompts before `max_tokens` tokens of a completion."""
        return Room(self.max_model_len, max_tokens)

    @property
    def opening(self) -> int | None:
        """Return the token that opens every text, if the tokenizer adds one."""
        bos: int | None = self.tokenizer.bos_token_id
        return bos if bos is not None and self.tokenizer.encode("")[:1] == [bos] else None

    def tokens(self, prompts: Batch, name: Callable[[int], str] = "prompt {}".format) -> list[list[int]]:
        """Return the token ids of each row's prompt. A token that opens every text is there exactly once.

        Raises `RolemeshError` with the `name` of a row whose messages cannot be rendered.
        """
        column = prompt_column(prompts)
        if column == "prompt_ids":
            return [np.asarray(ids).tolist() for ids in prompts[column]]
        texts = prompts[column]
        if column == "messages":
            texts = [self._render(chat, template_columns(prompts, row), name(row)) for row, chat in enumerate(texts)]
            if self.options.chat_template:  # which says itself what opens the text
                return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        opening = self.opening
        rows = [self.tokenizer.encode(text) for text in texts]
        # A text that was rendered with a chat template may have it already.
        return [ids[1:] if opening is not None and ids[:2] == [opening] * 2 else ids for ids in rows]

    def _render(self, messages: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], name: str) -> str:
        if self.options.chat_template:
            return chat_text(self.tokenizer, messages, columns, prompt=True, name=name)
        if columns:
            what = f"{name} has {' and '.join(columns)} for a chat template, and chat_template is false"
            raise RolemeshError(what, remedy="set chat_template to true, or leave the columns out")
        return "\n".join(plain_text(message, name) for message in messages)

    def complete(
        self,
        prompts: Sequence[Sequence[int]],
        params: Sequence[SamplingParams],
        progress: Callable[[int, int], object] | None = None,
    ) -> list[Completion]:
        """Return one completion of each of `prompts` (token ids), each with its own parameters.

        `progress` receives the numbers of completions that are done, and of all, after each of the engine's steps.
        """
        done: dict[int, Completion] = {}

        def add(row: int) -> None:
            mine = params[row].clone()
            mine.output_kind = RequestOutputKind.FINAL_ONLY
            self.requests.add(prompts[row], mine, lambda output: done.update({row: completion(output.outputs[0])}))

        for row in range(len(prompts)):
            add(row)
        while len(done) < len(prompts):
            self.requests.step()
            if progress is not None:
                progress(len(done), len(prompts))
        return [done[row] for row in range(len(prompts))]

    async def sample(self, prompt: Any, params: Mapping[str, Any]) -> dict[str, Any]:
        """Sample after `prompt` (token ids), together with all other requests; see `VLLMWorkload.sample`."""
        began, ids = time.monotonic(), token_ids(prompt)
        room = min(self.max_model_len - len(ids), params.get("max_tokens", self.max_model_len))
        if room <= 0:
            return no_room()
        try:
            shape = shape_of(params, room)
            if "structured_outputs" in shape:
                shape["structured_outputs"] = StructuredOutputsParams(**shape["structured_outputs"])
            request = exactly(shape, output_kind=RequestOutputKind.FINAL_ONLY)
            output = (await self.sampler.sample(ids, request)).outputs[0]
        except VLLMClientError as error:
            raise ValueError(str(error)) from error
        versions = np.empty(len(output.token_ids), np.int64)
        for span in output.weight_versions or ():
            versions[span.start : span.end] = int(span.version)
        made = completion(output)
        return answer_of(made.ids, made.logprobs, versions, made.finish_reason) | {"seconds": time.monotonic() - began}

    def label(self, version: int) -> None:
        """Mark the tokens from here on as made by weights `version`."""
        self.llm.llm_engine.set_weight_version(str(version))

    def load(self, weights: Mapping[str, Sequence[Shard]]) -> None:
        """Replace the model's weights by `weights` (all names of the checkpoint), and drop the cached prefixes.

        Requests that run go on with the new weights: their KV caches are computed again.
        """
        self._take(_tensors(complete_names(self._stored(weights), self._shapes, self._tied)))

    def _stored(self, weights: Mapping[str, Sequence[Shard]]) -> Mapping[str, Sequence[Shard]]:
        """Return `weights` as the folder's files name and cut them, which a trainer may have joined or renamed."""
        if not self._shapes or weights.keys() <= self._shapes.keys() | ({HEAD} if self._tied else set()):
            return weights
        from rolemesh_torch.stored import skeleton, stored

        try:
            with set_current_vllm_config(self.llm.llm_engine.vllm_config):  # vLLM replaces layers of transformers
                model = skeleton(self._model)
        except ValueError:  # transformers has no language model of this config
            return weights
        found = dict(weights)
        for name, whole in _tensors({name: each for name, each in weights.items() if name not in self._shapes}):
            del found[name]
            found |= {each: in_pieces(tensor) for each, tensor in stored(model, {name: whole}).items()}
        return found

    def adapt(self, adapters: Mapping[str, Sequence[Shard]], scaling: float) -> None:
        """Replace the model's weights by those of its folder with `adapters` merged into them."""
        tensors = dict(_tensors(adapters))
        check_adapters(tensors, self._shapes)
        self._take(merged(self._model, tensors, scaling, self._tied))

    def _take(self, tensors: Iterator[tuple[str, torch.Tensor]]) -> None:
        with self._deaths_named():
            self.llm.collective_rpc("start_weight_update")
            for some in [tensors] if self._workers is None else in_buckets(tensors):
                self.llm.collective_rpc("update_weights", args=({"weights": some},))
            self.llm.collective_rpc("finish_weight_update")
        self._forget_prefixes()

    def _deaths_named(self) -> AbstractContextManager[None]:
        return nullcontext() if self._workers is None else self._workers.deaths_named()

    def sleep(self) -> None:
        """Move the weights to host memory and drop the cache, if the engine can sleep (``enable_sleep_mode``)."""
        if self.llm.llm_engine.model_config.enable_sleep_mode:
            self._forget_prefixes()
            with self._deaths_named():
                self.llm.sleep(level=1)

    def wake(self) -> None:
        """Move the weights back, and allocate the cache."""
        if self.llm.llm_engine.model_config.enable_sleep_mode:
            with self._deaths_named():
                self.llm.wake_up()

    def _forget_prefixes(self) -> None:
        if not self.llm.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("the prefix cache still holds blocks of the old weights")

    def close(self) -> None:
        """End the engine and remove the files it left in the temporary directory."""
        from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel

        self.llm.llm_engine.engine_core.shutdown()
        self._workers = None
        del self.llm
        destroy_model_parallel()
        destroy_distributed_environment()
        gc.collect()
        for path in self._rendezvous_files:
            path.unlink(missing_ok=True)


def as_tensor(value: Any) -> torch.Tensor:
    """Return `value` (array or tensor) as a tensor that shares its memory. Do not write to the tensor of a read-only
    array."""
    if isinstance(value, torch.Tensor):
        return value
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable", category=UserWarning)
        return torch.from_numpy(np.asarray(value))


def _tensors(weights: Mapping[str, Sequence[Shard]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors one after the other, so that each joined tensor is freed before the next; vLLM keeps those of
    one layer."""
    for name, pieces in weights.items():
        whole = as_tensor(pieces[0].data)
        if len(pieces) > 1:
            whole = whole.new_empty(pieces[0].shape)
            for piece in pieces:
                Shard(as_tensor(piece.data), piece.shape, piece.offsets).into(whole)
        yield name, whole


def sampling(options: VLLMOptions, seeds: Sequence[int], **instead: Any) -> list[SamplingParams]:
    """Return the parameters of one completion per seed: those of the options, or `instead`, such as
    ``temperature=0.0``."""
    names = ("temperature", *NUCLEUS, *PENALTIES, "min_tokens")
    shape = {name: getattr(options, name) for name in names} | instead
    shape["logit_bias"] = shape["logit_bias"] or None
    shape |= {"n": 1, "max_tokens": options.max_tokens, "logprobs": 0}
    shape |= {name: getattr(options, name) or None for name in ("stop", "stop_token_ids")}
    return [exactly(shape | {"seed": seed if shape["temperature"] > 0 else None}) for seed in seeds]


def exactly(shape: Mapping[str, Any], **more: Any) -> SamplingParams:
    """Return the parameters `shape`, and `more`. Raises `ValueError` for a value that vLLM would replace by another."""
    made = SamplingParams(**shape, **more)
    for name, asked in shape.items():
        used = getattr(made, name)
        if isinstance(used, list):  # vLLM makes a list of one text or of none, and may leave out repetitions
            used, asked = set(used), {asked} if isinstance(asked, str) else set(asked or ())
        if used != asked and not (made.temperature == 0 and name in NUCLEUS):  # greedy sampling needs no nucleus
            raise ValueError(f"vLLM samples with {name} {used}, not {asked}; set {name} to {used}, or another value")
    return made


def completion(output: Any) -> Completion:
    """Return vLLM's ``CompletionOutput`` as a row."""
    ids = list(output.token_ids)
    chosen = [float(step[token].logprob) for step, token in zip(output.logprobs, ids, strict=True)]
    return Completion(ids, chosen, output.text, str(output.finish_reason))
