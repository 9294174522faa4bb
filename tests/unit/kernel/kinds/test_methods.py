"""Methods of workloads, and of classes of the workload `function`, fit the hooks before anything starts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rolemesh import Workload, hookspecs, operator, service
from rolemesh.kinds import KERNEL
from rolemesh.kinds.methods import method_breaches
from rolemesh.plugins.contract import breaches
from rolemesh.plugins.discovery import PluginRecord

HOOKS = KERNEL["workloads"].hooks


def faults(cls: type[Any]) -> list[tuple[str, str]]:
    return list(breaches(PluginRecord("workloads", "it", "", "", ""), cls))


def made(*methods: str) -> type[Any]:
    """A workload with these methods, each as it follows ``def``."""
    body = "\n".join(f"    def {method}: ..." for method in methods)
    names: dict[str, Any] = {"Workload": Workload}
    exec(f"class Made(Workload):\n{body}\n    pass", names)
    found: type[Any] = names["Made"]
    return found


@pytest.mark.parametrize("hook", HOOKS)
def test_the_base_class_has_the_signature_and_the_sentence_of_the_hook(hook: str) -> None:
    spec, method = getattr(hookspecs, hook), getattr(Workload, hook)
    given, wanted = inspect.signature(method), inspect.signature(spec)
    assert [(p.name, p.annotation) for p in given.parameters.values()][1:] == [
        (p.name, p.annotation) for p in wanted.parameters.values()
    ]
    assert given.return_annotation == wanted.return_annotation
    assert " ".join(method.__doc__.split()).startswith(" ".join(spec.__doc__.split()))


@pytest.mark.parametrize(
    ("methods", "what", "remedy"),
    [
        (("setup(self)",), "has setup(self): too many positional arguments", "write def setup(self, ctx)"),
        (
            ("committed(self, step, extra)",),
            "has committed(self, step, extra): missing a required argument: 'extra'",
            "write def committed(self, step)",
        ),
        (("snapshot(self)",), "has snapshot but no restore", "write def restore(self, state)"),
        (("restore(self, state)",), "has restore but no snapshot", "write def snapshot(self)"),
        (
            ("snapshoot(self)", "restore(self, state)"),
            "has restore but no snapshot",
            "rename 'snapshoot' to snapshot(self)",
        ),
        (("offload(self)",), "has offload but no onload", "write def onload(self)"),
        (("onload(self)",), "has onload but no offload", "write def offload(self)"),
    ],
)
def test_a_fault_names_the_hook_and_a_remedy(methods: tuple[str, ...], what: str, remedy: str) -> None:
    assert faults(made(*methods))[0] == (what, remedy)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("snapshoot", "snapshot"),
        ("snapshots", "snapshot"),
        ("snaphot", "snapshot"),
        ("on_restore", "restore"),
        ("onSnapshot", "snapshot"),
        ("set_up", "setup"),
        ("tear_down", "teardown"),
        ("comitted", "committed"),
    ],
)
def test_a_misspelled_hook_is_named(wrong: str, right: str) -> None:
    remedy = f"did you mean {right!r}? A helper's name begins with an underscore"
    assert faults(made(f"{wrong}(self)")) == [(f"has a method {wrong!r}, which nobody calls", remedy)]


def test_helpers_operators_and_services_with_similar_names_are_allowed() -> None:
    class Made(Workload):
        def setup(self, ctx: Any) -> None:
            self.drains()

        def drains(self) -> None: ...

        def train(self) -> None: ...

        def store(self) -> None: ...

        def reset(self) -> None: ...

        def download(self) -> None: ...

        def _snapshots(self) -> None: ...

        @operator()
        def persist(self) -> None: ...

        @service
        def restores(self) -> None: ...

    assert faults(Made) == []


def test_a_subclass_may_override_one_of_two_partners() -> None:
    class Parent(Workload):
        def snapshot(self) -> dict[str, int]:
            return {}

        def restore(self, state: Any) -> None: ...

    class Child(Parent):
        def snapshot(self) -> dict[str, int]:
            return {"more": 1}

    assert faults(Child) == []


def test_a_plain_class_may_leave_out_or_take_the_context_and_calls_by_the_flow_are_no_misspellings() -> None:
    class Plain:
        def setup(self) -> None: ...

        def drain(self, left_s: float) -> None: ...

        def snapshots(self) -> None: ...

    class WithContext:
        def setup(self, ctx: Any) -> None: ...

    specs = {hook: getattr(hookspecs, hook) for hook in HOOKS}
    assert list(method_breaches(WithContext, object, specs)) == []
    assert list(method_breaches(Plain, object, specs, {"snapshots"})) == []
    [(what, _)] = method_breaches(Plain, object, specs)
    assert what == "has a method 'snapshots', which nobody calls"
