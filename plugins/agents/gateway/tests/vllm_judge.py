"""vLLM's own server as the judge: what it answers if the model samples given tokens. Run as a program, without a GPU.

``python vllm_judge.py MODEL ASKED ANSWERS``: `ASKED` is a JSON list of requests, and `ANSWERS` gets one answer for
each, in the form of `vllm_forms.py`. An application for each pair of parsers does what ``vllm serve`` does: it renders,
detokenizes, looks for stop texts, parses and answers. Only the engine's process, which samples tokens, is replaced:
it says the tokens of the request, and ends at stop tokens and at the limit as vLLM's scheduler does.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.api_server.entry import build_async_engine_client_from_engine_args
from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs, FinishReason
from vllm.v1.engine.core_client import EngineCoreClient
from vllm_forms import path_of, read


class Core:
    """The engine's process: it samples the tokens `forced`, one after the other."""

    resources = SimpleNamespace(engine_dead=False)

    def __init__(self) -> None:
        self.forced: list[int] = []
        self.outputs = asyncio.Queue[EngineCoreOutputs]()

    async def add_request_async(self, request: Any) -> None:
        params, ended = request.sampling_params, None
        for at, token in enumerate(self.forced):
            if token == params.eos_token_id or token in (params.stop_token_ids or ()):
                ended = FinishReason.STOP
            elif at + 1 >= params.max_tokens:
                ended = FinishReason.LENGTH
            made = EngineCoreOutput(request.request_id, [token], finish_reason=ended)
            self.outputs.put_nowait(EngineCoreOutputs(outputs=[made]))
            if ended is not None:
                return

    async def get_output_async(self) -> EngineCoreOutputs:
        await asyncio.sleep(0)
        return await self.outputs.get()

    async def abort_requests_async(self, requests: Any) -> None:
        """A stop text has ended the request: the server drops its further tokens."""

    async def get_supported_tasks_async(self) -> tuple[str, ...]:
        return ("generate",)

    async def reset_mm_cache_async(self) -> None: ...

    def shutdown(self, timeout: Any = None) -> None: ...


async def main(model: str, asked: str, answers: str) -> None:
    core, found = Core(), []
    EngineCoreClient.make_async_mp_client = staticmethod(lambda **about: core)
    requests = json.loads(Path(asked).read_text())
    engine_args = AsyncEngineArgs(model=model, dtype="float32", max_model_len=4096, disable_log_stats=True)
    async with build_async_engine_client_from_engine_args(engine_args) as engine:
        tasks = await engine.get_supported_tasks()
        apps: dict[tuple[str, str, str], Any] = {}
        for request in requests:
            key = request["template"], request["calls"], request["reasoning"]
            if key not in apps:
                given = ["--model", model, "--served-model-name", "m", "--chat-template", key[0]]
                given += ["--enable-auto-tool-choice", "--tool-call-parser", key[1]]
                given += ["--reasoning-parser", key[2]] if key[2] else []
                args = make_arg_parser(FlexibleArgumentParser()).parse_args(given)
                args.structured_outputs_config.reasoning_parser = key[2]
                apps[key] = build_app(args, tasks, engine.model_config)
                await init_app_state(engine, apps[key].state, args, tasks)
                print(f"{len(found)} of {len(requests)}: {key}", flush=True)
            core.forced = request["ids"]
            transport = httpx.ASGITransport(app=apps[key], raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://vllm", timeout=None) as client:
                told = await client.post(path_of(request["api"]), json=request["body"])
            try:
                found.append(read(request["api"], told.status_code, told.text))
            except (ValueError, KeyError, IndexError) as error:  # the server's own error ends a stream in its middle
                found.append({"error": f"the stream ends: {error!r}"})
    Path(answers).write_text(json.dumps(found, ensure_ascii=False))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
