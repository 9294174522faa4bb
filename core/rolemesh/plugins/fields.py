"""The fields of a plugin's options that name other plugins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from pydantic import BaseModel

from rolemesh.job_file.model import Use


class PluginField(NamedTuple):
    """A field of options that names a plugin of `kind`: a `Use` with
    ``json_schema_extra={"plugins": "transports"}``. `path` leads to it from the options."""

    path: tuple[str, ...]
    kind: str
    default: Use

    def chosen(self, options: BaseModel) -> Use:
        """Return the field's value in checked options."""
        found: Use = attrgetter(".".join(self.path))(options)
        return found

    def written(self, options: Mapping[str, Any]) -> str:
        """Return the plugin that unchecked options name, or the default."""
        found: Any = options
        for part in self.path:
            found = found.get(part, {})
        name: str = found if isinstance(found, str) else found.get("use", self.default.use)
        return name


def plugin_fields(model: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[PluginField]:
    """Yield the fields of a model, and of models in it, that name plugins."""
    for name, field in model.model_fields.items():
        extra = field.json_schema_extra
        kind = extra.get("plugins") if isinstance(extra, dict) else None
        if kind is not None:
            default = field.get_default(call_default_factory=True)
            yield PluginField((*above, name), str(kind), default)
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from plugin_fields(field.annotation, (*above, name))
