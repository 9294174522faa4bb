"""The types of plugins' options, by which overrides of a job file are read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, create_model

from rolemesh.errors import RolemeshError
from rolemesh.job_file.model import Named
from rolemesh.job_file.overrides import Types, types_of_spec
from rolemesh.job_file.places import Path
from rolemesh.job_file.problems import annotations_at
from rolemesh.kinds import job_keys, kinds
from rolemesh.plugins.admission import Admission
from rolemesh.plugins.defaults import default_engine
from rolemesh.plugins.discovery import discover, resolve
from rolemesh.plugins.drivers import load
from rolemesh.plugins.fields import plugin_fields


@cache
def _plugins() -> type[BaseModel]:
    """Return a model with a field for each kind that a job lists under ``plugins``."""
    listed = (name for name, kind in kinds().items() if kind.key == f"plugins.{name}")
    fields: Any = dict.fromkeys(listed, (list[Named], []))
    model: type[BaseModel] = create_model("Plugins", **fields)
    return model


def types_of_plugins(base: FilePath, admit: Admission | None = None) -> Types:
    """Return the types by which overrides of a job file in the folder `base` are read: those of its
    own keys, and of plugins' options.

    With `admit`, a plugin that it refuses is not imported.
    """

    @cache
    def options_of(kind: str, reference: str) -> Any:
        record = resolve(kind, reference, discover(), base)
        return load(admit.look(record, "") if admit is not None else record).Options

    def of_engine(data: Any, path: Path) -> Sequence[Any]:
        """Return the types at `path` below the engine's options."""
        written = data.get("engine") or {}
        use = written if isinstance(written, str) else written.get("use")
        model = options_of("engines", use or default_engine(discover()))
        for field in plugin_fields(model):
            end = len(field.path)
            if path[: end + 1] == (*field.path, "options"):
                chosen = field.written(written["options"])
                return annotations_at(options_of(field.kind, chosen), path[end + 1 :])
        return annotations_at(model, path)

    def types(data: Any, path: Path) -> Sequence[Any]:
        try:
            if path[:2] == ("engine", "options"):
                return of_engine(data, path[2:])
            named = 1 + (path[:1] in (("roles",), ("plugins",)))
            if "options" not in path[named:]:
                declared = path[:1] == ("plugins",)
                return (
                    annotations_at(_plugins(), path[1:]) if declared else types_of_spec(data, path)
                )
            end = path.index("options", named)
            holders = {"roles": "workloads", "plugins": str(path[1])} | dict(job_keys())
            for part in path[:end]:
                data = data[int(part) if isinstance(data, list) else part]
            use = data if isinstance(data, str) else data["use"]
            return annotations_at(options_of(holders[str(path[0])], use), path[end + 1 :])
        except (RolemeshError, LookupError, TypeError, ValueError, AttributeError):
            return ()  # select says what is wrong with it

    return types
