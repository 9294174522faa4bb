"""The rendering of conversations by a model's own chat template, as text."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from rolemesh_agents.actions import Message
from rolemesh_agents.errors import AgentError

__all__ = ["Renderer", "TemplateRefusedError"]


class TemplateRefusedError(AgentError):
    """A chat template does not take these messages."""


class Renderer:
    """Renders messages with the chat template of a Hugging Face `tokenizer`.

    - `date`: the day that the template sees. It is part of prompts, so it must not change when a rank restarts.
    - `variables`: further variables of the template, such as `enable_thinking`.
    """

    def __init__(self, tokenizer: Any, date: datetime.date, variables: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._variables = {"strftime_now": date.strftime, **variables}

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        prompt: bool,
        continued: bool = False,
    ) -> str:
        """Return the text of `messages`. `prompt` adds the begin of the model's next turn; `continued` leaves out the
        end of the last message instead."""
        how = {"add_generation_prompt": prompt and not continued, "continue_final_message": continued}
        given = [dict(message) for message in messages]
        shown = [dict(tool) for tool in tools]
        for listed in (shown,) if shown else (None, []):  # Hermes 3's template needs a list
            try:
                return str(
                    self._tokenizer.apply_chat_template(given, tools=listed, tokenize=False, **how, **self._variables)
                )
            except Exception as error:  # a template is a program: it may fail in all ways
                refused = error
        roles = ", ".join(str(message.get("role")) for message in messages)
        raise TemplateRefusedError(
            f"the model's chat template refuses a conversation of the roles {roles}: {refused}",
            remedy="run `python -m rolemesh_agents.templates FOLDER` to see what the template takes",
        ) from refused
