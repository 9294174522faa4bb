"""The page on hooks: the signature, the words and the time limit of each specification."""

from __future__ import annotations

import inspect

from rolemesh import hookspecs
from rolemesh.plugins.manager import LIMITS_S

__all__ = ["page", "signatures"]

HEAD = """\
# Signatures of hooks

<!-- Made by `python -m docs.generator` from rolemesh.hookspecs. -->

[Hooks](../hooks.md) says when each hook is called, and which page explains it.
"""


def signatures() -> dict[str, str]:
    """Each hook with its signature, in the order of ``hookspecs.py``."""
    specs = {name: value for name, value in vars(hookspecs).items() if hasattr(value, "rolemesh_spec")}
    return {name: name + str(inspect.signature(value)).replace("'", "") for name, value in specs.items()}


def page() -> str:
    """The whole page, as Markdown."""
    return HEAD + "".join(_section(name, signature) for name, signature in signatures().items())


def _section(name: str, signature: str) -> str:
    said = (inspect.getdoc(getattr(hookspecs, name)) or "").replace("``", "`")
    limit = f"\n\nTime limit: {LIMITS_S[name]:g} s." if name in LIMITS_S else ""
    return f"\n## `{name}`\n\n```python\n{signature}\n```\n\n{said}{limit}\n"
