"""What every plugin is tested for, whatever its kind: found, light, described, with options that say what is wrong."""

from __future__ import annotations

import inspect
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, ValidationError

from rolemesh.errors import RolemeshError
from rolemesh.kinds import kind_named
from rolemesh.plugins.discovery import PluginRecord, discover, find
from rolemesh.plugins.drivers import load
from rolemesh_testing.hanging import check_import, fresh_python
from rolemesh_testing.kernel_requirement import kernel_requirements
from rolemesh_testing.overriding import check_overrides

__all__ = ["HEAVY", "PluginConformance", "modules_after"]

HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "tensorflow", "jax", "sklearn", "matplotlib", "pandas")
"""Packages that importing a plugin must not import: every driver that traces a flow would wait for them."""


class PluginConformance:
    """Base of the kinds' classes. `plugin` is what is tested: its name as in ``use:``, or the class itself."""

    kind: ClassVar[str]
    plugin: ClassVar[str | type[Any]]
    options: ClassVar[dict[str, Any]] = {}
    bad_options: ClassVar[Sequence[dict[str, Any]]] = ()
    """Options, each wrong in its own way, that must be refused with an error that names a remedy."""
    timeout_s: ClassVar[float] = 120.0
    """How long the plugin may take for what it is asked, in seconds. A whole test may take three times as long."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        check_overrides(cls)

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        """The job file's folder, to which relative paths in options refer."""
        return tmp_path

    @pytest.fixture
    def record(self) -> PluginRecord:
        """The plugin as the kernel finds it."""
        if isinstance(self.plugin, str):
            return find(self.kind, self.plugin, discover((self.kind,)))
        target = f"{self.plugin.__module__}:{self.plugin.__qualname__}"
        return PluginRecord(self.kind, self.plugin.__name__, "", "", target)

    @pytest.fixture
    def cls(self, record: PluginRecord) -> type[Any]:
        """The plugin's class."""
        if not record.distribution:
            return self.plugin  # type: ignore[return-value]
        check_import(record.target, self.timeout_s)
        return load(record)

    @pytest.fixture
    def checked_options(self, cls: type[Any], base: Path) -> BaseModel:
        """`options` as the plugin gets them."""
        if not self.options and any(field.is_required() for field in cls.Options.model_fields.values()):
            pytest.skip("it has required options, and the test class gives none")
        checked: BaseModel = cls.Options.model_validate(self.options, context={"base": str(base)})
        return checked

    # --------------------------------------------------------------------------------------------------- declaration

    def test_the_kernel_finds_it_by_its_name(self, record: PluginRecord) -> None:
        """One installed distribution offers it, and says so in an entry point that can be imported."""
        _installed(record)
        assert record.status == "available"
        check_import(record.target, self.timeout_s)
        assert load(record) is not None

    def test_its_distribution_says_which_kernels_it_fits(self, record: PluginRecord) -> None:
        """Requires-Dist has rolemesh with a lower and an upper bound: a later kernel may have another API."""
        _installed(record)
        if record.distribution == "rolemesh":
            pytest.skip("it is part of the kernel")
        needs = kernel_requirements(record.distribution)
        assert needs, f"{record.distribution} does not require rolemesh; add dependencies = ['rolemesh>=0.1,<0.2']"
        bounded = any(each.operator in ("<", "<=", "==", "===", "~=") for need in needs for each in need.specifier)
        assert bounded, f"'{needs[0]}' has no upper bound; a kernel with another API would be accepted"

    def test_it_has_the_base_class_of_its_kind(self, cls: type[Any]) -> None:
        """And an `api_version` that this kernel knows."""
        base = kind_named(self.kind).base_class()
        assert issubclass(cls, base)
        assert isinstance(cls.api_version, int)
        assert 1 <= cls.api_version <= base.api_version

    def test_importing_it_is_light(self, record: PluginRecord) -> None:
        """The driver imports it to check a job; what computes is imported in the rank, the agent or the hook."""
        module = record.target.partition(":")[0]
        code = (
            f"import sys, json, importlib; importlib.import_module({module!r}); print(json.dumps(sorted(sys.modules)))"
        )
        heavy = set(HEAVY) & modules_after(code)
        assert not heavy, f"import {module} imports {', '.join(sorted(heavy))}; import them where they are used"

    def test_importing_it_does_nothing_but_define(self, record: PluginRecord) -> None:
        """No output, no thread, no process: an import is repeated wherever the plugin is looked at."""
        module = record.target.partition(":")[0]
        done = _python(
            f"import importlib, threading, psutil; importlib.import_module({module!r}); "
            "print(threading.active_count() - 1, len(psutil.Process().children()))"
        )
        printed, found = done.stdout.splitlines()[:-1], done.stdout.splitlines()[-1]
        assert found == "0 0", f"import {module} starts threads and processes: {found}"
        assert not printed, f"import {module} prints {printed}"

    def test_it_says_what_it_is(self, cls: type[Any]) -> None:
        """The class has a docstring of its own: it is what `rolemesh plugins show` prints."""
        assert inspect.cleandoc(vars(cls).get("__doc__") or ""), f"{cls.__name__} has no docstring"

    # ------------------------------------------------------------------------------------------------------- options

    def test_its_options_are_accepted(self, checked_options: BaseModel) -> None:
        """Those that the test gives."""
        assert isinstance(checked_options, BaseModel)

    def test_a_misspelled_option_is_an_error(self, cls: type[Any], base: Path) -> None:
        """Silence would let a job run for hours with a default."""
        given = {**self.options, "no_such_option": 1}
        refusal = self._refusal(cls, given, base)
        named = refusal is not None and "no_such_option" in str(refusal)
        assert named, f'{given} was accepted; write class {cls.Options.__name__}(BaseModel, extra="forbid")'

    def test_every_option_is_described(self, cls: type[Any]) -> None:
        """``Field(description=...)``: it is what `rolemesh plugins show` and the job file's schema say."""
        nameless = [name for name, field in cls.Options.model_fields.items() if not field.description]
        assert not nameless, f"no description: {', '.join(nameless)}"

    def test_its_options_have_a_schema(self, cls: type[Any]) -> None:
        """As JSON, for editors and for `rolemesh schema`; the same each time."""
        schema = json.dumps(cls.Options.model_json_schema(by_alias=True), sort_keys=True)
        assert schema == json.dumps(cls.Options.model_json_schema(by_alias=True), sort_keys=True)

    def test_its_options_survive_json(self, cls: type[Any], checked_options: BaseModel, base: Path) -> None:
        """They travel to other processes, and into the run's folder, as JSON."""
        dumped = json.loads(json.dumps(checked_options.model_dump(mode="json", by_alias=True)))
        again = type(checked_options).model_validate(dumped, context={"base": str(base)})
        assert again.model_dump(mode="json") == checked_options.model_dump(mode="json")

    def test_defaults_are_not_shared(self, cls: type[Any], checked_options: BaseModel, base: Path) -> None:
        """Two roles with the same plugin do not write into each other's options."""
        one, other = checked_options, type(checked_options).model_validate(self.options, context={"base": str(base)})
        for name in cls.Options.model_fields:
            value = getattr(one, name)
            if isinstance(value, (list, dict, set)) and name not in self.options:
                assert value is not getattr(other, name), f"the default of {name} is one object for all"

    def test_bad_options_are_refused_with_a_remedy(self, cls: type[Any], base: Path) -> None:
        """Each of `bad_options`, by the model or, for a workload, by `check`; never by an arbitrary exception."""
        if not self.bad_options:
            pytest.skip("bad_options is empty")
        for bad in self.bad_options:
            refusal = self._refusal(cls, {**self.options, **bad}, base)
            assert refusal is not None, f"{bad} was accepted"
            remedied = isinstance(refusal, ValidationError) or refusal.remedy
            assert remedied, f"{bad} was refused without a remedy: {refusal}"

    def _refusal(self, cls: type[Any], options: dict[str, Any], base: Path) -> ValidationError | RolemeshError | None:
        try:
            self.check_options(cls, cls.Options.model_validate(options, context={"base": str(base)}), base)
        except (ValidationError, RolemeshError) as error:
            return error
        return None

    def check_options(self, cls: type[Any], options: BaseModel, base: Path) -> None:
        """What looks at options beyond their model."""
        if self.kind != "workloads":
            cls(options)


def _installed(record: PluginRecord) -> None:
    if not record.distribution:
        pytest.skip("the class itself was given, not the name of an installed plugin")


def modules_after(code: str) -> set[str]:
    """Top-level modules that are there after `code`, which prints ``sys.modules``."""
    return {name.partition(".")[0] for name in json.loads(_python(code).stdout.splitlines()[-1])}


def _python(code: str) -> subprocess.CompletedProcess[str]:
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr
    return done
