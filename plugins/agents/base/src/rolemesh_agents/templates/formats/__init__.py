"""The formats in which models write calls of tools. Each is pure: from text to calls."""

from __future__ import annotations

from rolemesh_agents.errors import AgentError
from rolemesh_agents.templates.formats.base import Format, Schemas
from rolemesh_agents.templates.formats.gemma import Gemma
from rolemesh_agents.templates.formats.marked import DeepSeek, Glm, Kimi, QwenCoder
from rolemesh_agents.templates.formats.tagged import Cohere, Granite, Hermes, Mistral
from rolemesh_agents.templates.formats.whole import Harmony, Lfm2, Llama3

__all__ = ["FORMATS", "Format", "Schemas", "find_format", "format_of"]

_LISTED: tuple[Format, ...] = (
    Harmony(), Gemma(), Cohere(), Kimi(), DeepSeek(), Mistral(), Lfm2(), Glm(), QwenCoder(), Granite(), Hermes(),
    Llama3(),
)  # fmt: skip
FORMATS = {form.name: form for form in _LISTED}
"""All formats by name. The first whose signs are in a chat template is the model's."""


def find_format(template: str) -> Format:
    """Return the format that a chat template asks the model for. Without a sign of one it is `hermes`."""
    for form in _LISTED:
        if all(sign in template for sign in form.signs):
            return form
    return FORMATS["hermes"]


def format_of(name: str) -> Format:
    """Return a format by name."""
    if name not in FORMATS:
        raise AgentError(f"there is no format {name!r} of calls of tools", remedy=f"use one of {', '.join(FORMATS)}")
    return FORMATS[name]
