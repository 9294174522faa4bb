"""Episodes whose tools are methods: the schema comes from the signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar, overload

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

from rolemesh.errors import PluginError
from rolemesh_agents.actions import Tool, ToolCall
from rolemesh_agents.contract import breach
from rolemesh_agents.environment import Episode, Observation

__all__ = ["ToolEpisode", "tool"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(*, repeatable: bool = True) -> Callable[[F], F]: ...
def tool(function: Any = None, /, *, repeatable: bool = True) -> Any:
    """Declare a method of a `ToolEpisode` as a tool. Its docstring describes it to the model.

    Its parameters need annotations, from which the JSON schema is made. It returns text, or an `Observation`.
    `repeatable`: see `Tool`.
    """

    def mark(function: F) -> F:
        function.__rolemesh_tool__ = repeatable  # type: ignore[attr-defined]
        return function

    return mark if function is None else mark(function)


class ToolEpisode(Episode):
    """An episode with the tools that its class marks with `@tool`. Arguments are checked before a tool runs; the model
    gets told what is wrong."""

    @classmethod
    def tools(cls) -> tuple[Tool, ...]:
        """Return the tools by name, for `Start`."""
        return tuple(_described(name, method) for name, method in sorted(_marked(cls).items()))

    def call(self, call: ToolCall) -> Any:
        """Check the arguments and run the method. A coroutine is returned as it is."""
        methods = _marked(type(self))
        if call.name not in methods:
            return Observation(f"there is no tool {call.name!r}; there are {', '.join(methods) or 'none'}")
        try:
            given = _arguments(methods[call.name]).validate_python(dict(call.arguments))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'arguments'}: {e['msg']}" for e in error.errors())
            return Observation(f"wrong arguments for {call.name}: {wrong}")
        fields = zip(_parameters(methods[call.name]), type(given).model_fields, strict=True)
        found = getattr(self, call.name)(**{parameter.name: getattr(given, field) for parameter, field in fields})
        return _awaited(found) if inspect.isawaitable(found) else _observed(found)


async def _awaited(found: Any) -> Observation:
    return _observed(await found)


def _observed(found: Any) -> Observation:
    return found if isinstance(found, Observation) else Observation(str(found))


def _marked(cls: type[Any]) -> dict[str, Callable[..., Any]]:
    found = {name: inspect.getattr_static(cls, name) for name in dir(cls)}
    return {name: method for name, method in found.items() if hasattr(method, "__rolemesh_tool__")}


def _parameters(method: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(method, eval_str=True).parameters.values())[1:]


def _model(method: Callable[..., Any]) -> Any:
    parameters = _parameters(method)
    for each in parameters:
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise _wrong(method, f"takes {each}", "give each parameter a name and a type")
        if each.annotation is each.empty:
            raise _wrong(
                method, f"has the parameter {each.name!r} without a type", f"write {each.name}: str, or int, …"
            )
    fields: dict[str, Any] = {}
    for number, each in enumerate(parameters):
        default: Any = ... if each.default is each.empty else each.default
        if each.name.startswith("_") or hasattr(BaseModel, each.name):  # a name that pydantic takes for its own
            fields[f"parameter{number}_"] = each.annotation, Field(default, alias=each.name)
        else:
            fields[each.name] = each.annotation, default
    try:
        return create_model(method.__name__, __config__={"extra": "forbid"}, **fields)
    except PydanticUserError as error:
        what = f"has a parameter that no JSON schema describes: {str(error).splitlines()[0]}"
        raise _wrong(method, what, "use numbers, strings, lists, dicts, Literal, Enum or pydantic models") from error


def _wrong(method: Callable[..., Any], what: str, remedy: str) -> PluginError:
    return breach(f"the tool {method.__qualname__} {what}", remedy=remedy)


def _arguments(method: Callable[..., Any]) -> TypeAdapter[Any]:
    return TypeAdapter(_model(method))


def _described(name: str, method: Any) -> Tool:
    schema = _model(method).model_json_schema()
    schema.pop("title", None)
    for about in schema.get("properties", {}).values():
        about.pop("title", None)
    return Tool(name, inspect.cleandoc(method.__doc__ or ""), schema, method.__rolemesh_tool__)
