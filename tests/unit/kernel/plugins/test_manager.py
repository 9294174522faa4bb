"""Hooks: checked when a plugin is registered, asked one by one, broadcast in order and past a failing one."""

import logging
from typing import Any

import pytest

from rolemesh import FailoverLevel, Observer, Scheduler, hookimpl
from rolemesh.errors import PlacementError, PluginError
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins

SCHEDULER = PluginRecord("schedulers", "mine", "my-dist", "1.0", "m:S")
OBSERVER = PluginRecord("observers", "eye", "eye-dist", "2.0", "m:O")


def test_a_hook_that_does_not_exist_is_refused_with_the_nearest() -> None:
    class Misspelled(Observer):
        @hookimpl
        def steps_finishd(self, metrics: object) -> None: ...

    with pytest.raises(PluginError) as caught:
        JobPlugins().create("o", OBSERVER, Misspelled, None, "job.yaml:9: observers.0.use")
    assert caught.value.where == "job.yaml:9: observers.0.use"
    expected = "the observer 'eye' (eye-dist 2.0) implements 'steps_finishd', which is no hook of its kind"
    assert caught.value.what == expected
    assert caught.value.remedy == "did you mean 'steps_finished'?"


def test_a_signature_that_does_not_fit_names_the_offending_argument() -> None:
    class Wrong(Scheduler):
        @hookimpl
        def place(self, request: object, clustr: object) -> None: ...

    with pytest.raises(PluginError) as caught:
        JobPlugins().create("s", SCHEDULER, Wrong, None)
    assert caught.value.what.startswith("the scheduler 'mine' (my-dist 1.0) implements the hook 'place' as place(self,")
    assert "clustr" in caught.value.what
    assert caught.value.what.endswith("but the hook has no argument 'clustr'")
    assert caught.value.remedy == "write it as place(self, request, cluster, plan), or with fewer arguments"


def test_a_plugin_that_cannot_be_created_is_named() -> None:
    class Fails(Scheduler):
        def __init__(self, options: Any) -> None:
            raise OSError("disk")

    with pytest.raises(PluginError, match=r"'mine' \(my-dist 1\.0\) cannot be created: OSError: disk"):
        JobPlugins().create("s", SCHEDULER, Fails, None)


def test_call_asks_one_plugin_only_and_a_hook_may_take_fewer_arguments() -> None:
    class Placer(Scheduler):
        @hookimpl
        def place(self, plan: int) -> int:
            return plan + int(self.options)

    plugins = JobPlugins()
    plugins.create("placement.0", SCHEDULER, Placer, 1)
    plugins.create("placement.1", SCHEDULER, Placer, 10)
    assert plugins.call("placement.0", "place", request=0, cluster=0, plan=100) == 101
    assert plugins.call("placement.1", "place", request=0, cluster=0, plan=100) == 110
    assert plugins.call("placement.0", "replace", plan=0, lost=(), cluster=0) is None
    assert plugins.names == ("placement.0", "placement.1")


def test_an_exception_in_a_called_hook_names_the_plugin_and_our_own_errors_pass() -> None:
    class Level(FailoverLevel):
        @hookimpl
        def recover(self, failure: str) -> None:
            raise PlacementError("no room") if failure == "room" else KeyError(failure)

    record = PluginRecord("failover", "lvl", "lvl-dist", "3.0", "m:L")
    plugins = JobPlugins()
    plugins.create("failover.0", record, Level, None)
    with pytest.raises(PluginError, match=r"'lvl' \(lvl-dist 3\.0\) failed in its hook 'recover': KeyError: 'x'"):
        plugins.call("failover.0", "recover", failure="x", view=None)
    with pytest.raises(PlacementError, match="no room"):
        plugins.call("failover.0", "recover", failure="room", view=None)


@pytest.mark.parametrize("error", [ValueError("broken observer"), SystemExit("cannot write")], ids=str)
def test_broadcast_goes_in_order_past_one_that_fails_and_reports_it_once(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    seen: list[str] = []

    class Eye(Observer):
        @hookimpl
        def event(self, event: object) -> None:
            seen.append(self.options)
            if self.options == "bad":
                raise error

    class Silent(Observer):
        pass

    plugins = JobPlugins()
    for name in ("first", "bad", "last"):
        plugins.create(name, OBSERVER, Eye, name)
    plugins.create("silent", OBSERVER, Silent, "silent")
    with caplog.at_level(logging.ERROR, "rolemesh.plugins"):
        plugins.broadcast("event", event=1)
        plugins.broadcast("event", event=2)
    assert seen == ["first", "bad", "last"] * 2
    [report] = caplog.records
    assert "the observer 'eye' (eye-dist 2.0) failed in its hook 'event'" in report.getMessage()
    assert report.exc_info is not None


def test_hooks_of_lists_implementations_with_their_signatures() -> None:
    class Eye(Observer):
        @hookimpl
        def event(self, event): ...  # type: ignore[no-untyped-def]

    assert hooks_of(Eye) == {"event": "event(self, event)"}
