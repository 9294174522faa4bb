"""Conformance of a command: rolemesh finds and describes its verb, refuses mistyped options, and its options clash with
no others.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest
import typer
from pydantic import BaseModel
from typer.testing import CliRunner

from rolemesh.api.command import Command, PlanOption, RunOption
from rolemesh.cli import plan, run
from rolemesh.cli.verbs import OWN
from rolemesh.errors import EXIT_NOT_STARTED
from rolemesh.job.engine import Engine
from rolemesh.plugins.discovery import PluginRecord, discover
from rolemesh.plugins.drivers import load
from rolemesh.plugins.static import attribute
from rolemesh_testing.conformance import HEAVY, PluginConformance, modules_after

__all__ = ["CommandConformance"]

VERB = "it"
SIDES = {"run.": RunOption, "plan.": PlanOption}
"""Prefixes of the names of commands that add options to another verb, and the classes of such commands."""


class CommandConformance(PluginConformance):
    """Subclass it with `plugin`: the name of an installed command, such as ``tidy``, ``plugins.sign`` or ``run.quiet``.

    The kit does not run a verb, since only its author knows its effects. It looks at the verb's help, arguments and
    options.
    """

    kind = "commands"

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def verb(self, cls: type[Command]) -> Any:
        """The command as it is typed. Skips a plugin that adds options to another verb."""
        return _typed(_verb(cls))

    @pytest.fixture
    def extra(self, cls: type[Command]) -> type[Command]:
        """The plugin that adds options to ``rolemesh run`` or ``rolemesh plan``. Skips verbs."""
        if not issubclass(cls, (RunOption, PlanOption)):
            pytest.skip("it is a verb")
        return cls

    # --------------------------------------------------------------------------------------------------- declaration

    def test_its_name_fits_its_class(self, cls: type[Command], record: PluginRecord) -> None:
        """``run.NAME`` is a `RunOption`, ``plan.NAME`` a `PlanOption`, and everything else a verb."""
        if not record.distribution:
            pytest.skip("the class itself was given, not the name of an installed plugin")
        wanted = next((side for begins, side in SIDES.items() if record.name.startswith(begins)), Command)
        found = next((side for side in SIDES.values() if issubclass(cls, side)), Command)
        assert found is wanted, (
            f"{record.name!r} is the name of a {wanted.__name__}, and {cls.__name__} a {found.__name__}"
        )

    def test_its_name_is_free(self, record: PluginRecord) -> None:
        """The kernel's own verbs win over installed ones of the same name. A name with a dot needs the verb before the
        dot.
        """
        assert record.name not in OWN, f"rolemesh has a verb {record.name!r} already, which goes before yours"
        group, _, last = record.name.rpartition(".")
        if record.distribution:
            assert last.replace("-", "").isalnum(), f"{last!r} is no name of a verb: letters, digits and dashes"
            groups = {*OWN, *(each.name for each in discover((self.kind,)))}
            assert group in {"", *groups}, f"there is no verb {group!r}, so nobody can type {record.name!r}"

    # ---------------------------------------------------------------------------------------------------------- verbs

    def test_the_list_of_verbs_says_what_it_does(self, cls: type[Command], record: PluginRecord) -> None:
        """The kernel reads `help` from the source of the class, so that ``rolemesh --help`` imports no command."""
        _verb(cls)
        assert cls.help.strip(), f"{cls.__name__} has no help; write help: ClassVar[str] = '...' in its body"
        assert "\n" not in cls.help.strip(), "help is more than a line"
        written = attribute(record, "help") if record.distribution else _written(cls)
        assert written == cls.help, "help is not written as text in the class's body, so the list of verbs is empty"

    def test_its_help_is_printed(self, cls: type[Command]) -> None:
        """``--help`` prints the verb's docstring."""
        done = CliRunner().invoke(_app(_verb(cls)), [VERB, "--help"])
        assert done.exit_code == 0, f"--help ends with {done.exit_code}: {done.output}{done.exception or ''}"
        found = _typed(_verb(cls))
        assert (found.help or "").strip() or hasattr(found, "commands"), "its function has no docstring"

    def test_its_help_is_quick(self, cls: type[Command], record: PluginRecord) -> None:
        """`function` imports nothing heavy, so that ``--help`` answers at once."""
        _verb(cls)
        module, _, name = record.target.partition(":")
        code = (
            f"import importlib, json; cls = importlib.import_module({module!r})\n"
            f"for part in {name.split('.')!r}: cls = getattr(cls, part)\n"
            "cls.function(); print(json.dumps(sorted(sys.modules)))"
        )
        heavy = set(HEAVY) & modules_after(code)
        assert not heavy, f"function() imports {', '.join(sorted(heavy))}; import them where the verb needs them"

    def test_its_arguments_and_options_are_described(self, verb: Any) -> None:
        """Use ``Annotated[str, typer.Option(help=...)]``: ``--help`` prints nothing else about an option."""
        nameless = [f"{name} of {each.name}" for each in _commands(verb) for name in _nameless(each)]
        assert not nameless, f"no help: {', '.join(nameless)}"

    def test_a_misspelled_option_of_the_verb_is_refused(self, cls: type[Command]) -> None:
        """The verb exits with code 2 before it does anything."""
        done = CliRunner().invoke(_app(_verb(cls)), [VERB, "--no-such-option-of-it"])
        assert done.exit_code == EXIT_NOT_STARTED, f"--no-such-option-of-it ends with {done.exit_code}: {done.output}"

    # ------------------------------------------------------------------------------------------ options of run and plan

    def test_its_options_have_defaults(self, extra: type[Command]) -> None:
        """All options are optional: the verb also works without them."""
        required = [name for name, field in extra.Options.model_fields.items() if field.is_required()]
        assert not required, f"no default: {', '.join(required)}"

    def test_it_is_used_only_on_request(self, extra: type[Command]) -> None:
        """If no option is given, `rolemesh run` runs the job itself."""
        if not issubclass(extra, RunOption):
            pytest.skip("it adds options to rolemesh plan")
        assert not extra(extra.Options()).wanted(), "wanted() is true with no option given"

    def test_it_does_what_its_options_are_for(self, extra: type[Command]) -> None:
        """The class overrides at least one of the methods that the verb calls."""
        base = next(each for each in SIDES.values() if issubclass(extra, each))
        calls = ("run", "admission") if base is RunOption else ("tell", "overrides")
        own = [name for name in calls if getattr(extra, name) is not getattr(base, name)]
        assert own, f"none of {', '.join(calls)} is defined, so its options do nothing"

    def test_its_options_belong_to_no_other_plugin(self, extra: type[Command], record: PluginRecord) -> None:
        """If two options had one name, the user could give only one of them."""
        side, fixed = ("run.", run.fixed) if issubclass(extra, RunOption) else ("plan.", plan.fixed)
        taken = dict.fromkeys(inspect.signature(fixed).parameters, f"rolemesh {side[:-1]}")
        if side == "run.":
            for each in discover(("engines",)):
                engine: type[Engine] = load(each)
                taken |= dict.fromkeys(engine.options_for({}).model_fields, f"the engine {each.name}")
        for each in discover((self.kind,)):
            if each.name.startswith(side) and each.target != record.target:
                taken |= dict.fromkeys(load(each).Options.model_fields, f"the command {each.name}")
        twice = [f"--{name} ({taken[name]} has one)" for name in extra.Options.model_fields if name in taken]
        assert not twice, f"there is such an option already: {', '.join(twice)}"

    def check_options(self, cls: type[Any], options: BaseModel, base: Any) -> None:
        """A plugin can be made with these options."""
        cls(options)


def _verb(cls: type[Command]) -> Any:
    if issubclass(cls, (RunOption, PlanOption)):
        pytest.skip("it adds options to another verb")
    return cls.function()


def _app(verb: Any) -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    if isinstance(verb, typer.Typer):
        app.add_typer(verb, name=VERB)
    else:
        app.command(VERB, context_settings=getattr(verb, "context_settings", None))(verb)
    app.callback()(lambda: None)
    return app


def _typed(verb: Any) -> Any:
    group = typer.main.get_command(_app(verb))
    return group.commands[VERB]  # type: ignore[attr-defined]


def _commands(verb: Any) -> Iterator[Any]:
    yield verb
    for each in getattr(verb, "commands", {}).values():
        yield from _commands(each)


def _nameless(verb: Any) -> Iterator[str]:
    for parameter in verb.params:
        if not (getattr(parameter, "help", None) or getattr(parameter, "hidden", False)):
            yield str(parameter.name)


def _written(cls: type[Command]) -> str:
    """Return `help` as the source of the class defines it; "" if it does not."""
    (body,) = ast.parse(dedent(inspect.getsource(cls))).body
    for node in body.body if isinstance(body, ast.ClassDef) else ():
        value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
        names = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(each, ast.Name) and each.id == "help" for each in names) and isinstance(value, ast.Constant):
            return str(value.value)
    return ""
