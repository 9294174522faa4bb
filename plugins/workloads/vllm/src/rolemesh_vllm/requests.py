"""The requests that run in an engine, from operators and from services. Imports vllm."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from vllm import SamplingParams
from vllm.inputs.engine import tokens_input

from rolemesh_vllm.load import Load

__all__ = ["Requests"]


class Requests:
    """Adds requests to vLLM's engine, and hands each output to the function that waits for it.

    All requests of a rank are here, so an operator and the calls of a service share each batch of the engine.
    """

    def __init__(self, llm: Any, deaths_named: Callable[[], AbstractContextManager[None]]) -> None:
        """`llm`: the `vllm.LLM`. Inside `deaths_named()`, errors caused by a worker's death name the worker."""
        self._numbers, self._engine = llm.request_counter, llm.llm_engine
        self._deaths_named = deaths_named
        self._takers: dict[str, Callable[[Any], None]] = {}
        self.load = Load(self._engine)

    def __len__(self) -> int:
        return len(self._takers)

    def add(self, ids: Sequence[int], params: SamplingParams, take: Callable[[Any], None]) -> str:
        """Add a request for `ids`, and return its name. `take` gets each ``RequestOutput`` (`params.output_kind`).

        The engine changes `params`. Raises vLLM's error for a prompt that it refuses.
        """
        name = str(next(self._numbers))
        self._engine.add_request(name, tokens_input(list(ids)), params)
        self._takers[name] = take
        return name

    def step(self) -> None:
        """Compute one batch, usually one token of each request, and hand out its outputs."""
        began = time.perf_counter()
        with self._deaths_named():
            outputs = self._engine.step()
        ended = sum(len(each.token_ids) for output in outputs if output.finished for each in output.outputs)
        self.load.step(time.perf_counter() - began, ended)
        for output in outputs:
            name = output.request_id
            take = self._takers.pop(name, None) if output.finished else self._takers.get(name)
            if take is not None:
                take(output)

    def abort(self, name: str) -> None:
        """End a request without an answer, and free its KV cache. A finished request may be named, too."""
        if self._takers.pop(name, None) is not None:
            self._engine.abort_request([name])
