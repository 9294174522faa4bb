"""Options of the harness `program`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from rolemesh_gateway.rewards import WRONG, RewardFrom

__all__ = ["ProcessOptions"]


Taken = Literal[
    "max_tokens", "stop", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "structured_outputs",
]  # fmt: skip
"""A parameter of requests that may have an effect, as vLLM names it."""


def _taken() -> list[Taken]:
    return ["max_tokens", "stop"]


class ProcessOptions(BaseModel, extra="forbid"):
    """The program, its limits, and the origin of the reward."""

    command: list[str] = Field(
        min_length=1,
        description="the program and its arguments; {base} is the job file's folder, {python} the rank's interpreter, "
        "{question} the text of the environment's last message",
    )
    env: dict[str, str] = Field(
        default_factory=dict,
        description="more environment variables, with the same names in braces; the program inherits PATH, LANG and TZ "
        "only",
    )
    reward: RewardFrom = Field(
        "environment",
        description="environment: it judges the last turn; exit: 1 for exit status 0, 0 for those in `wrong`; stdout: "
        "the number in the last line; call: the program sends it to $ROLEMESH_URL/reward",
    )
    wrong: list[int] = Field(
        default_factory=lambda: list(WRONG),
        description="with exit: the exit statuses that mean a reward of 0; the conversation fails with all others, and "
        "with an uncaught exception",
    )
    reward_if_truncated: float | None = Field(
        None,
        description="with exit, stdout and call: the reward of a conversation that a limit ended before the program "
        "set one; null: the conversation fails, and rolemesh tries it again",
    )
    takes: list[Taken] = Field(
        default_factory=_taken,
        description="parameters of requests that have an effect; the job's sampling parameters replace all others. "
        "structured_outputs: response_format, text.format and output_config.format force the form of a turn",
    )
    leave_out: list[str] = Field(
        default_factory=list,
        description="types of tools, such as web_search, that the gateway leaves out of requests; it refuses all "
        "others that are no functions",
    )
    model: str = Field("policy", description="name of the model in the gateway's list; requests may use any name")
    seconds: float = Field(600.0, gt=0, description="time of the program; its conversation is then truncated")
    grace_s: float = Field(
        2.0, ge=0, description="time between SIGTERM and SIGKILL, and between the end of a conversation and SIGTERM"
    )
    retry_s: float = Field(
        10.0,
        ge=0,
        description="time for which the gateway goes on with a request whose client has disconnected; the same request "
        "then gets the answer; 0: it cancels the request at once",
    )
    processes: int = Field(
        64, ge=1, description="processes of the program at the same time; more fail the conversation"
    )
    output_kb: int = Field(64, ge=1, description="kept end of stdout and of stderr, in 10^3 bytes each")
    request_mb: float = Field(8.0, gt=0, description="maximum length of the body of a request, in 10^6 bytes")
    sandbox: str | None = Field(
        None,
        description="name of a sandbox under plugins.sandboxes; each program runs in one, where it reaches its own "
        "conversation and nothing else; null: none",
    )
    memory_mb: int = Field(1000, gt=0, description="with sandbox: memory of one process, in 10^6 bytes")
    disk_mb: int = Field(64, gt=0, description="with sandbox: size of the program's folder, in 10^6 bytes")
    waiting: int = Field(128, ge=1, description="requests of one conversation that may wait; the gateway refuses more")
