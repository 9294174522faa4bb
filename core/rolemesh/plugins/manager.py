"""The plugins of one job in a pluggy manager: validated when they are registered, called one by one or all together."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec
import pluggy

from rolemesh import hookspecs
from rolemesh.errors import PluginError, RolemeshError, nearest
from rolemesh.kinds import kind_named
from rolemesh.plugins.discovery import PluginRecord

__all__ = ["JobPlugins", "One", "check_hooks", "hooks_of"]

log = logging.getLogger("rolemesh.plugins")

T = TypeVar("T")

LIMITS_S: Mapping[str, float] = {"place": 60.0, "replace": 60.0, "recover": 2.0, "diagnose": 2.0}
"""How long a hook may take to answer, in seconds. Levels and diagnosers are asked while the whole job waits."""
MOST_SHOWN = 200
"""Characters of a wrong answer that are shown."""


def hooks_of(cls: type[Any]) -> dict[str, str]:
    """The hooks that a plugin class implements, and the signature of each implementation."""
    found = {}
    for name in dir(cls):
        value = inspect.getattr_static(cls, name)
        options = getattr(value, "rolemesh_impl", None)
        if options is not None:
            found[options.get("specname") or name] = f"{name}{inspect.signature(value)}"
    return found


def _wrong(record: PluginRecord, what: str) -> PluginError:
    remedy = f"report it to the author of {record.distribution}, with the traceback in the log if there is one"
    return PluginError(f"{record.what} {what}", remedy=remedy)


def check_hooks(record: PluginRecord, cls: type[Any], where: str | None = None) -> None:
    """Raise `PluginError` where a hook of the class is unknown, or takes what its specification does not give."""
    for hook, signature in hooks_of(cls).items():
        _check_hook(record, hook, signature, cls, where)


def _check_hook(record: PluginRecord, hook: str, signature: str, cls: type[Any], where: str | None) -> None:
    who = f"{record.what} implements"
    spec = getattr(hookspecs, hook, None)
    known = kind_named(record.kind).hooks
    method = getattr(cls, signature.partition("(")[0])
    if hook not in known or spec is None:
        if method.rolemesh_impl.get("optionalhook"):
            return
        raise PluginError(f"{who} {hook!r}, which is no hook of its kind", where=where, remedy=nearest(hook, known))
    allowed = list(inspect.signature(spec).parameters)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    extra = [p.name for p in parameters if p.name not in allowed and p.default is p.empty]
    if extra:
        shown = ", ".join(repr(argument) for argument in extra)
        raise PluginError(
            f"{who} the hook {hook!r} as {signature}, but the hook has no argument {shown}",
            where=where,
            remedy=f"write it as {hook}(self, {', '.join(allowed)}), or with fewer arguments",
        )


class _Answer(threading.Thread):
    """A call in a thread of its own, since nothing else can be left alone when it does not end."""

    def __init__(self, caller: Callable[..., Any], arguments: dict[str, Any]) -> None:
        super().__init__(daemon=True)
        self._caller, self._arguments = caller, arguments
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.value = self._caller(**self._arguments)
        except BaseException as error:
            self.error = error


class JobPlugins:
    """Schedulers, failover levels and observers of one job, by instance name.

    pluggy would call the last registered first; nothing here depends on it: `call` asks one plugin, `broadcast` goes
    in the order of registration.
    """

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._plugins: dict[str, tuple[PluginRecord, object]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._lost: set[tuple[str, str]] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """The instances in the order of their registration."""
        return tuple(self._plugins)

    def instance(self, name: str) -> Any:
        """The registered object; `KeyError` if there is none."""
        return self._plugins[name][1]

    def record(self, name: str) -> PluginRecord:
        """Where a registered object came from; `KeyError` if there is none."""
        return self._plugins[name][0]

    def create(self, name: str, record: PluginRecord, cls: type[Any], options: Any, where: str | None = None) -> Any:
        """Make an instance with ``cls(options)`` and `register` it."""
        try:
            instance = cls(options)
        except RolemeshError:
            raise
        except Exception as error:
            raise PluginError(
                f"{record.what} cannot be created: {type(error).__name__}: {error}",
                where=where,
                remedy=f"check its options, or report it to the author of {record.distribution}",
            ) from error
        self.register(name, record, instance, where)
        return instance

    def register(self, name: str, record: PluginRecord, instance: object, where: str | None = None) -> None:
        """Add an instance. Raises `PluginError` where a hook is unknown or its signature does not fit the spec."""
        if name in self._plugins:
            raise ValueError(f"{name!r} is registered already")
        check_hooks(record, type(instance), where)
        try:
            self._manager.register(instance, name=name)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(
                f"{record.what} does not fit the hook specs: {error}",
                where=where,
                remedy="see docs/hooks.md for the hooks and their arguments",
            ) from error
        self._plugins[name] = (record, instance)

    def call(self, name: str, hook: str, **arguments: Any) -> Any:
        """Call a hook of one plugin; None if it does not implement it.

        A `RolemeshError` passes; anything else that the plugin raises becomes a `PluginError` that names it, and so
        does an answer that does not come within the hook's `LIMITS_S`. A hook that has not come back is not called
        again.
        """
        record, instance = self._plugins[name]
        if (name, hook) in self._lost:
            raise _wrong(record, f"has not come back from an earlier call of its hook {hook!r}")
        others = [other for _, other in self._plugins.values() if other is not instance]
        caller = self._manager.subset_hook_caller(hook, remove_plugins=others)
        answer = _Answer(caller, arguments)
        answer.start()
        answer.join(LIMITS_S[hook])
        if answer.is_alive():
            self._lost.add((name, hook))
            raise _wrong(record, f"has not come back from its hook {hook!r} within {LIMITS_S[hook]:g} s")
        if isinstance(answer.error, RolemeshError):
            raise answer.error
        if answer.error is not None:
            cause = f"{type(answer.error).__name__}: {answer.error}"
            raise _wrong(record, f"failed in its hook {hook!r}: {cause}") from answer.error
        return answer.value

    def asked(self, name: str, hook: str, kind: type[T], **arguments: Any) -> T | None:
        """As `call`, for hooks that answer with a struct of `kind`, or None. Raises `PluginError` for anything else."""
        value = self.call(name, hook, **arguments)
        if value is None:
            return None
        try:
            if not isinstance(value, kind):
                raise msgspec.ValidationError(f"expected {kind.__name__} or None, got {type(value).__name__}")
            return msgspec.convert(msgspec.to_builtins(value), kind)
        except (msgspec.ValidationError, TypeError) as error:
            record, shown = self._plugins[name][0], repr(value)
            shown = shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]} …"
            raise _wrong(record, f"answered {shown} from its hook {hook!r}: {error}") from error

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        """Call a hook of every plugin that implements it, in the order of registration.

        One that raises, or exits, is logged once per hook, with its traceback, and the others are called all the same.
        """
        for name in self._plugins:
            self.tell(name, hook, **arguments)

    def tell(self, name: str, hook: str, /, **arguments: Any) -> None:
        """Call a hook of one plugin, if it implements it; as in `broadcast`, nothing is raised."""
        record, instance = self._plugins[name]
        others = [other for _, other in self._plugins.values() if other is not instance]
        caller = self._manager.subset_hook_caller(hook, remove_plugins=others)
        try:
            caller(**arguments)
        except (Exception, SystemExit):
            if (name, hook) not in self._reported:
                self._reported.add((name, hook))
                log.exception("%s failed in its hook %r; it is reported once, the job goes on", record.what, hook)

    def each(self) -> dict[str, One]:
        """Every plugin alone, by its name, and the distribution it is from."""
        return {f"{name} ({record.distribution})": One(self, name) for name, (record, _) in self._plugins.items()}


class One:
    """One of the plugins of a job."""

    def __init__(self, plugins: JobPlugins, name: str) -> None:
        self._plugins, self._name = plugins, name

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        """Call its hook, if it implements it; nothing is raised."""
        self._plugins.tell(self._name, hook, **arguments)
