"""The tests for plugins of every kind: rolemesh finds the plugin, its import is light, and its options are described
and checked.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from pydantic import BaseModel, ValidationError

from rolemesh.errors import Problems, RolemeshError
from rolemesh.kinds import kind_named
from rolemesh.plugins.discovery import PluginRecord, discover, find
from rolemesh.plugins.drivers import load
from rolemesh_testing.hanging import fresh_python
from rolemesh_testing.importing import imported
from rolemesh_testing.kernel_requirement import kernel_requirements
from rolemesh_testing.overriding import check_overrides

__all__ = ["HEAVY", "InstalledConformance", "PluginConformance", "modules_after", "needed", "once"]

HEAVY = ("torch", "ray", "vllm", "deepspeed", "transformers", "tensorflow", "jax", "sklearn", "matplotlib", "pandas")
"""Packages that importing a plugin must not import: they would slow down every driver that traces a flow."""

T = TypeVar("T")
_MADE = pytest.StashKey[dict[tuple[Any, str], Any]]()
"""Values that the tests of a class share, by class and name; and a sentence for tests that lack the value."""
_FAILED = pytest.StashKey[dict[tuple[Any, str], str]]()
"""Failures of values that several tests of a class need: the test that failed first and its error, by class."""


def needed(request: pytest.FixtureRequest, what: str, make: Callable[[], T]) -> T:
    """Return the value of `make`, which many tests of a class need. `what` names it in a sentence.

    If `make` raises, the first test of the class fails with its error. The other tests are skipped, since the same
    error says no more there.
    """
    failed = request.session.stash.setdefault(_FAILED, {})
    if (request.cls, what) in failed:
        pytest.skip(f"not run: {failed[request.cls, what]} shows that {what}")
    try:
        return make()
    except Exception:
        failed[request.cls, what] = request.node.name
        raise


def once(request: pytest.FixtureRequest, what: str, make: Callable[[], T]) -> T:
    """Like `needed`, but all tests of the class share one value, and `make` runs once."""
    made = request.session.stash.setdefault(_MADE, {})
    if (request.cls, what) not in made:
        made[request.cls, what] = needed(request, what, make)
    return made[request.cls, what]  # type: ignore[no-any-return]


class InstalledConformance:
    """Base of all classes of the kit, with the tests that hold for every entry point."""

    kind: ClassVar[str]
    """The kind's name, which is the last part of the entry-point group. Each kind's class sets it."""
    plugin: ClassVar[str | type[Any]]
    """The plugin under test: its name, or the class itself."""
    timeout_s: ClassVar[float] = 120.0
    """Time limit of one question to the plugin, in seconds. A whole test may take three times as long."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        check_overrides(cls)

    @pytest.fixture
    def record(self, request: pytest.FixtureRequest) -> PluginRecord:
        """The plugin's record, as the kernel finds it."""
        return needed(request, "the plugin is not found", self.found)

    @pytest.fixture
    def loaded(self, record: PluginRecord, request: pytest.FixtureRequest) -> Any:
        """The object that the entry point names."""
        return needed(request, "the plugin cannot be used", lambda: self.load(record))

    def found(self) -> PluginRecord:
        """Return the record of `plugin`. Raises `PluginError` if it is not installed."""
        if isinstance(self.plugin, str):
            return find(self.kind, self.plugin, discover((self.kind,)))
        target = f"{self.plugin.__module__}:{self.plugin.__qualname__}"
        return PluginRecord(self.kind, self.plugin.__name__, "", "", target)

    def load(self, record: PluginRecord) -> Any:
        """Import the object that `record` names. Raises `AssertionError` if the import ends the process, `PluginError`
        if it fails.
        """
        if not record.distribution:
            return self.plugin
        imported(record.target, self.timeout_s)
        return load(record)

    # --------------------------------------------------------------------------------------------------- declaration

    def test_the_kernel_finds_it_by_its_name(self, record: PluginRecord, loaded: Any) -> None:
        """Exactly one installed distribution offers the plugin, in an entry point that can be imported."""
        _installed(record)
        assert record.status == "available"
        assert loaded is not None

    def test_its_distribution_says_which_kernels_it_fits(self, record: PluginRecord) -> None:
        """Requires-Dist contains rolemesh with a lower and an upper bound: a later kernel may have another API."""
        _installed(record)
        if record.distribution == "rolemesh":
            pytest.skip("it is part of the kernel")
        needs = kernel_requirements(record.distribution)
        assert needs, f"{record.distribution} does not require rolemesh; add dependencies = ['rolemesh>=0.1,<0.2']"
        bounded = any(each.operator in ("<", "<=", "==", "===", "~=") for need in needs for each in need.specifier)
        assert bounded, f"'{needs[0]}' has no upper bound; a kernel with another API would be accepted"

    @pytest.mark.usefixtures("loaded")
    def test_importing_it_is_light(self, record: PluginRecord) -> None:
        """The driver imports the plugin to check a job. Import libraries for computation in the rank, the agent or the
        hook.
        """
        heavy = set(HEAVY) & imported(record.target, self.timeout_s).modules
        module = record.target.partition(":")[0]
        assert not heavy, f"import {module} imports {', '.join(sorted(heavy))}; import them where they are used"

    @pytest.mark.usefixtures("loaded")
    def test_importing_it_does_nothing_but_define(self, record: PluginRecord) -> None:
        """The import raises nothing, prints nothing, and starts no thread or process. Every process that uses the
        plugin repeats it.
        """
        module, seen = record.target.partition(":")[0], imported(record.target, self.timeout_s)
        assert not seen.error, f"import {module} fails in a fresh process: {seen.error}"
        started = f"{seen.threads} threads and {seen.children} processes"
        quiet = (seen.threads, seen.children) == (0, 0)
        assert quiet, f"import {module} starts {started}; start them where they are used"
        assert not seen.printed, f"import {module} prints {seen.printed.splitlines()}"


class PluginConformance(InstalledConformance):
    """Base of the kinds' classes. `plugin` is the plugin under test: its name as in ``use:``, or the class itself."""

    options: ClassVar[dict[str, Any]] = {}
    """The plugin's options in all tests, in the form that a job file has."""
    bad_options: ClassVar[Sequence[dict[str, Any]]] = ()
    """Wrong options. The plugin must refuse each of them with an error that names a remedy."""

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        """The job file's folder. Relative paths in options refer to it."""
        return tmp_path

    @pytest.fixture
    def cls(self, loaded: Any) -> type[Any]:
        """The plugin's class."""
        return loaded  # type: ignore[no-any-return]

    @pytest.fixture
    def checked_options(self, cls: type[Any], base: Path, request: pytest.FixtureRequest) -> BaseModel:
        """`options` as the plugin gets them."""
        if not self.options and any(field.is_required() for field in cls.Options.model_fields.values()):
            pytest.skip("the test class gives no options, and some are required")
        context = {"base": str(base)}
        checked: BaseModel = needed(
            request, "its options are not accepted", lambda: cls.Options.model_validate(self.options, context=context)
        )
        return checked

    # --------------------------------------------------------------------------------------------------- declaration

    def test_it_has_the_base_class_of_its_kind(self, cls: type[Any]) -> None:
        """The class also has an `api_version` that this kernel knows."""
        base = kind_named(self.kind).base_class()
        assert issubclass(cls, base)
        assert isinstance(cls.api_version, int)
        assert 1 <= cls.api_version <= base.api_version

    def test_it_says_what_it_is(self, cls: type[Any]) -> None:
        """The class has a docstring of its own. `rolemesh plugins show` prints it."""
        assert inspect.cleandoc(vars(cls).get("__doc__") or ""), f"{cls.__name__} has no docstring"

    # ------------------------------------------------------------------------------------------------------- options

    def test_its_options_are_accepted(self, checked_options: BaseModel) -> None:
        """The plugin accepts the test class's `options`."""
        assert isinstance(checked_options, BaseModel)

    def test_a_misspelled_option_is_an_error(self, cls: type[Any], base: Path) -> None:
        """If a misspelled option were accepted, the job would run for hours with a default."""
        given = {**self.options, "no_such_option": 1}
        refusal = self._refusal(cls, given, base)
        named = refusal is not None and "no_such_option" in str(refusal)
        assert named, f'{given} was accepted; write class {cls.Options.__name__}(BaseModel, extra="forbid")'

    def test_every_option_is_described(self, cls: type[Any]) -> None:
        """Use ``Field(description=...)``. `rolemesh plugins show` and the job file's schema print it."""
        nameless = [name for name, field in cls.Options.model_fields.items() if not field.description]
        assert not nameless, f"no description: {', '.join(nameless)}"

    def test_its_options_have_a_schema(self, cls: type[Any]) -> None:
        """The schema is JSON, for editors and for `rolemesh schema`, and the same each time."""
        schema = json.dumps(cls.Options.model_json_schema(by_alias=True), sort_keys=True)
        assert schema == json.dumps(cls.Options.model_json_schema(by_alias=True), sort_keys=True)

    def test_its_options_survive_json(self, cls: type[Any], checked_options: BaseModel, base: Path) -> None:
        """Options travel to other processes, and into the run's folder, as JSON."""
        dumped = json.loads(json.dumps(checked_options.model_dump(mode="json", by_alias=True)))
        again = type(checked_options).model_validate(dumped, context={"base": str(base)})
        assert again.model_dump(mode="json") == checked_options.model_dump(mode="json")

    def test_defaults_are_not_shared(self, cls: type[Any], checked_options: BaseModel, base: Path) -> None:
        """Two roles with the same plugin do not share a mutable default."""
        given = checked_options.model_dump(mode="json", by_alias=True, exclude_unset=True)
        one, other = checked_options, type(checked_options).model_validate(given, context={"base": str(base)})
        for name in cls.Options.model_fields:
            value = getattr(one, name)
            if isinstance(value, (list, dict, set)) and name not in self.options:
                assert value is not getattr(other, name), f"the default of {name} is one object for all"

    def test_bad_options_are_refused_with_a_remedy(self, cls: type[Any], base: Path) -> None:
        """The model or, for a workload, `check` refuses each of `bad_options`, with an error for users."""
        if not self.bad_options:
            pytest.skip("the test class has no bad_options")
        for bad in self.bad_options:
            refusal = self._refusal(cls, {**self.options, **bad}, base)
            assert refusal is not None, f"{bad} was accepted"
            if isinstance(refusal, RolemeshError):
                errors = refusal.errors if isinstance(refusal, Problems) else [refusal]
                bare = [error for error in errors if not error.remedy]
                assert not bare, f"{bad} was refused without a remedy: {bare[0]}"

    def _refusal(self, cls: type[Any], options: dict[str, Any], base: Path) -> ValidationError | RolemeshError | None:
        try:
            self.check_options(cls, cls.Options.model_validate(options, context={"base": str(base)}), base)
        except (ValidationError, RolemeshError) as error:
            return error
        return None

    def check_options(self, cls: type[Any], options: BaseModel, base: Path) -> None:
        """Check options beyond their model. Subclasses override it."""
        if self.kind != "workloads":
            cls(options)


def _installed(record: PluginRecord) -> None:
    if not record.distribution:
        pytest.skip("the class itself was given, not the name of an installed plugin")


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that are loaded after `code`, which prints ``sys.modules``."""
    done = fresh_python(code)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}
