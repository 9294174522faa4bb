"""How the public surface is compared, and what the page on compatibility promises; ``make lint`` compares it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.surface import difference, surface

from rolemesh import Scheduler, hookimpl, hookspecs
from rolemesh.errors import PluginError
from rolemesh.kinds import kinds
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins

ROOT = Path(__file__).resolve().parents[1]
COMPATIBILITY = (ROOT / "docs/compatibility.md").read_text()


def test_a_difference_shows_the_line_and_the_command_that_renews_the_file() -> None:
    text = difference("place(a)\nreplace(b)\n", "place(a, c)\nreplace(b)\n")
    assert "-place(a)\n+place(a, c)" in text
    assert "python -m tests.surface --write" in text


@pytest.mark.soak
def test_the_surface_depends_neither_on_the_terminal_nor_on_hash_seeds_nor_on_where_it_is_asked(tmp_path: Path) -> None:
    environ = os.environ | {
        "COLUMNS": "20",
        "PYTHONHASHSEED": "7",
        "TERM": "dumb",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.surface"], env=environ, cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == surface()
    assert " at 0x" not in done.stdout
    assert str(ROOT) not in done.stdout


# ----------------------------------------------------------------------------- what the page on compatibility promises


def a_strategy(**methods: Any) -> tuple[PluginRecord, Any]:
    """A placement strategy with these hooks, as some distribution would bring it."""
    cls = type("Strange", (Scheduler,), {name: hookimpl(method) for name, method in methods.items()})
    return PluginRecord("schedulers", "strange", "strange-dist", "1.0", "strange:Strange"), cls


def test_the_page_says_the_api_version_of_every_kind() -> None:
    assert "now 1 for every kind" in COMPATIBILITY
    assert {kind.base_class().api_version for kind in kinds().values()} == {1}


def test_an_implementation_with_fewer_arguments_fits_a_hook_that_has_gained_one() -> None:
    record, cls = a_strategy(place=lambda self, plan: plan)
    plugins = JobPlugins()
    plugins.create("strange", record, cls, None)
    assert plugins.call("strange", "place", request=1, cluster=2, plan=3) == 3


def test_an_argument_that_the_kernel_does_not_know_yet_is_refused_by_name() -> None:
    record, cls = a_strategy(place=lambda self, plan, deadline: plan)
    with pytest.raises(PluginError, match="the hook has no argument 'deadline'") as caught:
        JobPlugins().create("strange", record, cls, None)
    assert caught.value.remedy is not None
    assert "place(self, request, cluster, plan)" in caught.value.remedy


def test_an_argument_with_a_default_fits_kernels_with_and_without_it() -> None:
    record, cls = a_strategy(place=lambda self, plan, deadline=7, cluster="not given": (plan, deadline, cluster))
    plugins = JobPlugins()
    plugins.create("strange", record, cls, None)
    assert plugins.call("strange", "place", request=1, cluster=2, plan=3) == (3, 7, 2)


def test_a_plugin_with_a_deprecated_hook_gets_a_warning_when_a_job_selects_it(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = DeprecationWarning("`replace` goes with rolemesh 0.3: `place` is asked again instead")
    monkeypatch.setitem(hookspecs.replace.rolemesh_spec, "warn_on_impl", announced)  # type: ignore[attr-defined]
    record, cls = a_strategy(place=lambda self, plan: plan, replace=lambda self, plan: plan)
    with pytest.warns(DeprecationWarning, match=r"goes with rolemesh 0\.3"):
        JobPlugins().create("strange", record, cls, None)


def test_only_a_plugin_that_takes_a_deprecated_argument_gets_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    announced = {"request": DeprecationWarning("`request` goes with rolemesh 0.3")}
    monkeypatch.setitem(hookspecs.place.rolemesh_spec, "warn_on_impl_args", announced)  # type: ignore[attr-defined]
    takes, leaves = a_strategy(place=lambda self, request: None), a_strategy(place=lambda self, plan: plan)
    with pytest.warns(DeprecationWarning, match="`request` goes"):
        JobPlugins().create("strange", *takes, None)
    JobPlugins().create("strange", *leaves, None)
