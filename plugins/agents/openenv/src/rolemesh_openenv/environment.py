"""The environment `openenv`: tasks and episodes of a class that derives from OpenEnv's ``Environment``."""

from __future__ import annotations

import operator
from importlib import import_module
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from rolemesh.errors import OptionsError
from rolemesh_agents import Environment, Episode
from rolemesh_openenv.calling import Caller, Line, StillRunsError
from rolemesh_openenv.episode import OpenEnvEpisode
from rolemesh_openenv.remote import Remote, RemoteAction, Tasks, action_of

__all__ = ["OpenEnvEnvironment", "OpenEnvOptions"]

SEED_SPACING = 1_000_000
"""Distance between the first seeds of two job seeds."""
SEEDS = 2**31
PATH = r"^[\w.]+:[\w.]+$"


class OpenEnvOptions(BaseModel, extra="forbid"):
    """Options of the environment `openenv`."""

    environment: str | None = Field(
        None, pattern=PATH, description="module:Class of the environment, as its server makes it"
    )
    url: str | None = Field(
        None,
        pattern=r"^https?://[^/?#]+[^?#]*$",
        description="base URL of a server of OpenEnv that runs elsewhere; each episode is a session of it",
    )
    begin_s: float = Field(
        60.0,
        gt=0,
        description="with url: how long an episode that has not begun connects again to a server that is down or full",
    )
    load_s: float = Field(
        600.0, gt=0, description="limit of the import of the class, and of its constructor, in seconds"
    )
    answer_s: float = Field(60.0, gt=0, description="with url: limit of each answer of the server, in seconds")
    arguments: dict[str, Any] = Field(default_factory=dict, description="arguments of the class")
    reset: dict[str, Any] = Field(default_factory=dict, description="further arguments of each `reset`")
    action: str | None = Field(
        None,
        pattern=PATH,
        description="module:Class of the action, which becomes the tool `step`; null: the tools of an MCPEnvironment",
    )
    text: str | None = Field(
        None, description="the action's field that takes turns without a call; null: such a turn ends the episode"
    )
    prompt: str = Field(
        "{observation}", description="the first message of the user; {observation} is the first observation"
    )
    system: str | None = Field(None, description="system prompt; by default none, so the chat template's own is used")
    observation: str | None = Field(
        None, description="the observation's field that the model sees; null: all fields as JSON, but for the reward"
    )
    once: list[str] = Field(default_factory=list, description="tools with effects outside; rolemesh repeats no call")
    step_errors: Literal["failure", "answer"] = Field(
        "failure",
        description="what an exception of `step` does: `failure` fails the conversation, `answer` tells the model",
    )
    rewards: Literal["sum", "last"] = Field("sum", description="how the steps' rewards become the episode's")
    success: float | None = Field(None, description="reward from which on the task counts as solved; null: unknown")
    splits: tuple[str, str] = Field(
        ("train", "test"), description="the splits for training and for held-out tasks, if the environment lists tasks"
    )
    eval_size: int = Field(64, ge=0, description="held-out seeds, if the environment lists no tasks")

    @field_validator("url")
    @classmethod
    def _without_slash(cls, url: str | None) -> str | None:
        return url if url is None else url.rstrip("/")

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.environment is None) == (self.url is None):
            raise ValueError("give `environment` (a class) or `url` (a server that runs elsewhere)")
        wrong = ("arguments", "action", "load_s") if self.environment is None else ("begin_s", "answer_s")
        fields = type(self).model_fields
        if given := [
            name for name in wrong if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]:
            kind = "url" if self.environment is None else "environment"
            raise ValueError(f"`{kind}` does not use {', '.join(given)}: remove it")
        return self


class OpenEnvEnvironment(Environment):
    """Runs an environment of OpenEnv in the ranks of the role `environment`, or as a client of a server elsewhere.

    If the class lists tasks (OpenEnv's ``TaskProvider``), these are the tasks. Otherwise a task is a seed for `reset`.
    """

    Options = OpenEnvOptions

    def __init__(self, options: OpenEnvOptions) -> None:
        super().__init__(options)
        if options.text is not None and options.action is None and options.url is None:
            raise OptionsError("text needs an action, of which it is a field", where="text", remedy="give `action`")
        self._listing: Any = None
        self._classes: tuple[Any, Any] | None = None
        """The class of the environment, and that of its actions or None, once they are imported."""
        self._asked: RemoteAction | Literal[False] | None = False
        """The server's class of actions, once it is known."""

    def size(self, split: Literal["train", "eval"]) -> int | None:
        """See `Environment.size`."""
        if self._lists:
            return self._count(self._split(split))
        return self.options.eval_size if split == "eval" else None

    def task(self, split: Literal["train", "eval"], number: int, seed: int) -> dict[str, Any]:
        """See `Environment.task`. The data has the arguments of `reset`."""
        if self._lists:
            return {"split": self._split(split), "index": number}
        first = 0 if split == "eval" else self.options.eval_size
        return {"seed": (SEED_SPACING * seed + first + number) % SEEDS}

    def episode(self) -> Episode:
        """See `Environment.episode`."""
        options: OpenEnvOptions = self.options
        if options.url is not None:
            return OpenEnvEpisode(options, self._connecting, self._remote_action)
        made, action = self._imported()
        return OpenEnvEpisode(options, lambda: self._made(made), lambda: action)

    def close(self) -> None:
        """See `Environment.close`."""
        if self._listing is not None:
            self._listing.close()

    @property
    def _lists(self) -> bool:
        options: OpenEnvOptions = self.options
        if self._listing is None and options.url is not None:
            self._listing = Tasks(options.url, options.begin_s, options.splits[0])
        elif self._listing is None:
            self._listing = self._made(self._imported()[0])
        return hasattr(self._listing.held, "num_tasks")

    def _split(self, split: Literal["train", "eval"]) -> str:
        """Return OpenEnv's name of a split. Raises `OptionsError` if the environment does not have it."""
        name = str(self.options.splits[0 if split == "train" else 1])
        if hasattr(self._listing.held, "list_splits"):
            found = [_name(each) for each in self._listing.call("list_splits")]
            if name not in found:
                what = f"the environment has no split {name!r}"
                raise OptionsError(what, where="splits", remedy=f"it has {', '.join(found)}: name the two in `splits`")
        return name

    def _count(self, split: str) -> int:
        """Return the number of tasks of a split. Raises `OptionsError` if the environment does not say it."""
        found = self._listing.call("num_tasks", split)
        try:
            return operator.index(found)
        except TypeError as error:
            what = f"`num_tasks` of the environment has returned {found!r:.100} for {split!r}"
            raise OptionsError(what, where="environment", remedy="let it return a whole number") from error

    def _imported(self) -> tuple[Any, Any]:
        """Return the class of the environment, and that of its actions or None. Raises `OptionsError`."""
        options: OpenEnvOptions = self.options
        if self._classes is None:
            line = Line()

            def both() -> tuple[Any, Any]:
                made = loaded("environment", str(options.environment))
                return made, None if options.action is None else loaded("action", options.action)

            try:
                self._classes = line.run(both, options.load_s)
            except StillRunsError as error:
                raise _late(options, "imported", error) from error
            finally:
                line.close()
        return self._classes

    def _made(self, made: Any) -> Caller:
        """Return a new object of the class. Raises `OptionsError` if it cannot be made."""
        try:
            return Caller(lambda: made(**self.options.arguments), self.options.load_s)
        except StillRunsError as error:
            raise _late(self.options, "made", error) from error
        except Exception as error:
            what = f"{self.options.environment} cannot be made: {type(error).__name__}: {error}"
            remedy = "look at its `arguments`, and at what it needs on the machine"
            raise OptionsError(what, where="environment", remedy=remedy) from error

    def _connecting(self) -> Remote:
        options: OpenEnvOptions = self.options
        return Remote(str(options.url), options.begin_s, options.answer_s)

    def _remote_action(self) -> RemoteAction | None:
        if self._asked is False:
            self._asked = action_of(str(self.options.url), self.options.begin_s)
        return self._asked


def _name(split: Any) -> str:
    """Return the name of a split: a text, a mapping, or an object with `name`."""
    if isinstance(split, str):
        return split
    return str(split["name"] if isinstance(split, dict) else split.name)


def _late(options: OpenEnvOptions, what: str, where: StillRunsError) -> OptionsError:
    """Return the error for a class that is not `what` in time."""
    remedy = "if it loads much data there, raise `load_s`; else mend what it waits for"
    text = f"{options.environment} has not been {what} within {options.load_s:g} s: it still runs {where}"
    return OptionsError(text, where="environment", remedy=remedy)


def loaded(option: str, path: str) -> Any:
    """Return the object that ``module:Class`` names. Raises `OptionsError` if it cannot be imported."""
    module, _, name = path.partition(":")
    try:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:
        what = f"{path} cannot be imported: {type(error).__name__}: {error}"
        remedy = "give the roles `tasks` and `environment` the package: runtime_env: {pip: [openenv==0.10.0, …]}"
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is None or not f"{module}.".startswith(f"{missing}."):
            remedy = "install what it imports in both roles, or its folder: runtime_env: {env_vars: {PYTHONPATH: …}}"
        raise OptionsError(what, where=option, remedy=remedy) from error
    return found
