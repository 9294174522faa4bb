"""The plugins of one job in a pluggy manager. They are validated when they are registered, and
called one by one or all together."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

import pluggy

from rolemesh import hookspecs
from rolemesh.errors import PluginError, RolemeshError
from rolemesh.plugins.contract import hook_breaches
from rolemesh.plugins.discovery import PluginRecord

log = logging.getLogger("rolemesh.plugins")

LIMITS_S: Mapping[str, float] = {"place": 60.0, "replace": 60.0, "recover": 2.0, "diagnose": 2.0}
"""Maximum duration of a hook in seconds. The whole job waits for failover levels and diagnosers."""


def misbehaved(record: PluginRecord, what: str) -> PluginError:
    """Return the error for a plugin that violates the contract of a hook."""
    remedy = f"report it to {record.author}, with the traceback in the log if there is one"
    return PluginError(f"{record.what} {what}", kind="misbehaved", remedy=remedy)


class JobPlugins:
    """Schedulers, failover levels and observers of one job, by instance name.

    pluggy would call the last registered plugin first, but nothing here depends on that: `call`
    calls one plugin, and `broadcast` calls all in the order of registration.
    """

    def __init__(self) -> None:
        self._manager = pluggy.PluginManager(hookspecs.PROJECT)
        self._manager.add_hookspecs(hookspecs)
        self._plugins: dict[str, tuple[PluginRecord, object]] = {}
        self._reported: set[tuple[str, str]] = set()
        self._lost: set[tuple[str, str]] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the instances in the order of their registration."""
        return tuple(self._plugins)

    def instance(self, name: str) -> Any:
        """Return the registered object; raise `KeyError` if there is none."""
        return self._plugins[name][1]

    def record(self, name: str) -> PluginRecord:
        """Return the record of a registered object; raise `KeyError` if there is none."""
        return self._plugins[name][0]

    def create(
        self,
        name: str,
        record: PluginRecord,
        cls: type[Any],
        options: Any,
        where: str | None = None,
    ) -> Any:
        """Make an instance with ``cls(options)`` and register it as `name`.

        Raises `PluginError` if a hook is unknown, if its signature does not fit the specification,
        or if the constructor fails.
        """
        if name in self._plugins:
            raise ValueError(f"{name!r} is registered already")
        for why, remedy in hook_breaches(record, cls):
            raise PluginError(f"{record.what} {why}", where=where, remedy=remedy)
        try:
            instance = cls(options)
            self._manager.register(instance, name=name)
        except RolemeshError:
            raise
        except Exception as error:
            what = f"{record.what} cannot be created: {type(error).__name__}: {error}"
            raise PluginError(
                what, where=where, remedy=f"check its options, or report it to {record.author}"
            ) from error
        self._plugins[name] = (record, instance)
        return instance

    def _caller(self, name: str, hook: str) -> Callable[..., Any]:
        """Return a function that calls the hook of this plugin only."""
        others = [
            other for _, other in self._plugins.values() if other is not self._plugins[name][1]
        ]
        return self._manager.subset_hook_caller(hook, remove_plugins=others)

    def call(self, name: str, hook: str, /, **arguments: Any) -> Any:
        """Call a hook of one plugin. Returns None if the plugin does not implement it.

        A `RolemeshError` of the plugin is passed on. Any other exception becomes a `PluginError`
        that names the plugin, and so does a call that exceeds the hook's limit in `LIMITS_S`. A
        hook that has not returned is not called again.
        """
        record = self._plugins[name][0]
        caller = self._caller(name, hook)
        if (name, hook) in self._lost:
            raise misbehaved(record, f"has not returned from an earlier call of its hook {hook!r}")
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result(caller(**arguments))
            except BaseException as error:
                answer.set_exception(error)

        # A thread of its own: nothing else can be left alone when it does not end.
        threading.Thread(target=ask, daemon=True).start()
        try:
            error = answer.exception(LIMITS_S[hook])
        except TimeoutError:
            self._lost.add((name, hook))
            what = f"has not returned from its hook {hook!r} within {LIMITS_S[hook]:g} s"
            raise misbehaved(record, what) from None
        if error is None or isinstance(error, RolemeshError):
            return answer.result()
        raise misbehaved(
            record, f"failed in its hook {hook!r}: {type(error).__name__}: {error}"
        ) from error

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        """Call a hook of every plugin that implements it, in the order of registration.

        If a hook raises or exits, the error is logged with its traceback, once per hook, and the
        other plugins are still called.
        """
        for name in self._plugins:
            self.tell(name, hook, **arguments)

    def tell(self, name: str, hook: str, /, **arguments: Any) -> Any:
        """Call a hook of one plugin if it implements it, and return its answer. As in `broadcast`,
        errors are logged and not raised."""
        record = self._plugins[name][0]
        caller = self._caller(name, hook)
        try:
            return next(iter(caller(**arguments)), None)
        except (Exception, SystemExit):
            if (name, hook) not in self._reported:
                self._reported.add((name, hook))
                log.exception(
                    "%s failed in its hook %r; it is reported once, the job goes on",
                    record.what,
                    hook,
                )

    def each(self) -> dict[str, Callable[..., Any]]:
        """Return, by plugin name with its distribution, a function that calls the hook of that
        plugin alone."""
        return {
            f"{name} ({record.distribution})": partial(self.tell, name)
            for name, (record, _) in self._plugins.items()
        }
