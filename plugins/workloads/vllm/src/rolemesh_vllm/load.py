"""The load of an engine over its steps: requests, KV cache, preemptions and speed, from vLLM's scheduler."""

from __future__ import annotations

from functools import wraps
from typing import Any

__all__ = ["Load"]


class Load:
    """Looks at the scheduler after each step, as vLLM's own metrics do. This takes microseconds; theirs look at each
    request.
    """

    _usage: float

    def __init__(self, engine: Any) -> None:
        """`engine`: vLLM's ``LLMEngine``, whose core is in this process."""
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._empty()
        schedule = self._scheduler.schedule

        @wraps(schedule)
        def counted(*args: Any, **kwargs: Any) -> Any:
            output = schedule(*args, **kwargs)
            self._preemptions += len(output.preempted_req_ids or ())
            return output

        self._scheduler.schedule = counted

    def step(self, seconds: float, tokens: int) -> None:
        """Count a step that took `seconds`. `tokens` are those of the requests that it finished."""
        running, waiting = self._scheduler.get_request_counts()
        self._steps += 1
        self._running += running
        self._waiting += waiting
        self._usage = max(self._usage, self._scheduler.get_kv_cache_usage())
        self._seconds += seconds
        self._tokens += tokens

    def metrics(self, ranks: int) -> tuple[dict[str, float], int]:
        """Return the means over the steps since the last call, and the number of preemptions; nothing without a step.

        `generated_tokens_per_s` is such that its mean over the ranks is the speed of all `ranks`.
        """
        found: dict[str, float] = {}
        if self._steps and self._seconds:
            found = {
                "requests_running": self._running / self._steps,
                "requests_waiting": self._waiting / self._steps,
                "kv_cache_usage": self._usage,
                "generated_tokens_per_s": ranks * self._tokens / self._seconds,
            }
        preemptions = self._preemptions
        if found:
            self._empty()
        return found, preemptions

    def _empty(self) -> None:
        self._steps = self._running = self._waiting = self._tokens = self._preemptions = 0
        self._usage = self._seconds = 0.0
