"""The grammar of overrides, and of values that a job built in Python hands to a job file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rolemesh import Job
from rolemesh.errors import JobFileError
from rolemesh.job_file import JobFile, load
from rolemesh.job_file.environment import literal
from rolemesh.job_file.loading import Written
from rolemesh.job_file.places import dump_yaml
from rolemesh.plugins.option_types import types_of_plugins

JOB = """\
name: test
flow: flow.py:f
steps: 3
roles: {a: {use: function, options: {target: "f.py:A", kwargs: {text: given}}}}
"""
TYPES = types_of_plugins(Path("/nowhere"))
TEXT = "roles.a.options.kwargs.text"
HOSTILE = ("", " ", "#be brief", "a # b", "Answer: yes", "[x", "*", "x\ny", "&a b", "---", "!tag", "yes", "null", "~",
           "5", "007", "1_000", "1e5", "true", '"a"', "'a'", "{a: b}", "[a]", "${HOME}", "$${HOME}", "$$", "%41", "=",
           ":=1", "2026-01-01", "\\n", "a\\", "é\u2028\x85", "\x07")  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def loaded(*overrides: str, text: str = JOB, env: dict[str, str] | None = None) -> JobFile:
    return load(Written(text, Path("/nowhere"), "job.yaml"), overrides, env or {}, lambda base: TYPES)


def text_of(*overrides: str, **more: Any) -> Any:
    return loaded(*overrides, **more).spec.roles["a"].options["kwargs"]["text"]


def refusal(*overrides: str) -> JobFileError:
    with pytest.raises(JobFileError) as caught:
        loaded(*overrides)
    return caught.value


def with_hostile_examples(test: Any) -> Any:
    for text in HOSTILE:
        test = example(text)(test)
    return settings(max_examples=50)(given(st.text())(test))


@with_hostile_examples
def test_an_option_that_is_a_string_gets_the_text_itself(text: str) -> None:
    job = loaded(f"engine.options.state={text}", f"roles.a.options.target={text}")
    again = loaded(text=job.dump())
    for found in (job.spec, again.spec):
        assert (found.engine.options["state"], found.roles["a"].options["target"]) == (text, text)


@settings(max_examples=50)
@given(VALUES)
@example({"<<": {"a": "<<"}, "${A}": ["${A}", "$${A}", "$$${A}"]})
@example({"${a": "}"})
def test_a_value_given_in_python_is_the_same_behind_the_job_file(value: Any) -> None:
    text = dump_yaml(
        literal({"name": "t", "flow": "f", "steps": 1, "params": {"v": value}, "roles": {"a": {"use": "x"}}})
    )
    assert loaded(text=text).spec.params["v"] == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5), ("-3", -3), ("1e5", 1e5), ("0.5", 0.5), ("true", True), ("False", False), ("null", None),
        ("[1, a]", [1, "a"]), ("{a: 1}", {"a": 1}), ("{}", {}), ("[]", []), ('"5"', "5"), ("'it''s'", "it's"),
        ('""', ""), ('"a: #b"', "a: #b"), ('"a\\tb"', "a\tb"),
    ],
)  # fmt: skip
def test_a_text_of_unknown_type_is_a_value_if_all_of_it_reads_as_one(text: str, value: Any) -> None:
    assert text_of(f"{TEXT}={text}") == value


@pytest.mark.parametrize(
    "text",
    [
        "#be brief", "a # b", "Answer: yes", "[x", "*", "x\ny", "&a b", "*a", "---", "!tag x", "yes", "no", "on", "off",
        "~", "007", "1_000", " 5", "5\n", "2026-01-01", "12:30", "- a", "? a", "{question}", "{a} and {b}",
        "[INST] a [/INST]", '"a" or "b"', '"a": "b"', '"a\nb"', "'", "$HOME", "${HOME}", "$${HOME}", "%20", "a\\nb",
        "| a", "> a", "@a",
        "`a`",
    ],
)  # fmt: skip
def test_every_other_text_stays_as_it_was_typed(text: str) -> None:
    assert text_of(f"{TEXT}={text}", env={"HOME": "/root"}) == text


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("steps=1_000", "steps", 1000),
        ("steps=null", "steps", None),
        ("engine.options.lease_s=1e2", "engine", {"lease_s": 100.0}),
        ("engine.options.any.flag=false", "engine", {"any": {"flag": False}}),
        ("metrics={every: 5}", "metrics", None),
    ],
)
def test_other_types_get_the_meaning_of_the_text(override: str, key: str, value: Any) -> None:
    spec = loaded(override).spec
    assert getattr(spec, key) == value or key in ("engine", "metrics")
    assert spec.engine.options == (value if key == "engine" else {})
    assert spec.metrics.every == (5 if key == "metrics" else None)


def test_a_key_that_is_a_number_is_overridden_and_not_repeated_as_a_text() -> None:
    text = JOB.replace("text: given", "text: {1: a, on: b, 2: {3: c, true: d}, 0x10: e}")
    assert text_of(
        f"{TEXT}.1=z",
        f"{TEXT}.2.3=y",
        f"{TEXT}.2.true=u",
        f"{TEXT}.4=x",
        f"{TEXT}.0x10=w",
        f"{TEXT}.false=v",
        text=text,
    ) == {1: "z", "on": "b", 2: {3: "y", True: "u"}, 16: "w", "4": "x", "false": "v"}


def test_a_string_that_may_be_null_is_null_only_for_this_word() -> None:
    folder = "roles.a.runtime_env.working_dir"
    assert loaded(f"{folder}=null").spec.roles["a"].runtime_env.working_dir is None
    assert loaded(f"{folder}=5").spec.roles["a"].runtime_env.working_dir == "5"
    assert loaded(f'{folder}:="null"').spec.roles["a"].runtime_env.working_dir == "null"


@pytest.mark.parametrize(
    "override",
    ["steps=", "engine.options.lease_s=", f"{TEXT}=", "metrics=", "steps:=", "name:=", "engine.options.state:= # x"],
)
def test_a_missing_value_is_refused_where_it_is_no_string(override: str) -> None:
    error = refusal(override)
    assert (error.where, error.what) == (
        f"command line: {override}",
        "there is no value: is a variable of the shell unset?",
    )
    [command] = [word for word in shlex.split((error.remedy or "").replace(";", " ")) if word.endswith(":=null")]
    assert command.startswith(override.rstrip(":= #x"))


def test_a_list_or_mapping_that_cannot_be_read_says_why() -> None:
    assert "not valid YAML" in refusal("failover=[{use: a}").what
    assert "duplicate key" in refusal("metrics={every: 1, every: 2}").what
    assert refusal("steps=#5").what == "expected an integer, got '#5' (a string)"


def test_a_piece_of_a_job_file_has_its_rules_and_its_variables() -> None:
    assert text_of(f"{TEXT}:=a # b") == "a"
    assert text_of(f"{TEXT}:=${{N}}", env={"N": "5"}) == 5
    assert text_of(f'{TEXT}:="${{N}}"', env={"N": "5"}) == "5"
    assert text_of(f'{TEXT}:=""') == ""
    job = loaded("engine.options.state:=postgresql://u:${PW}@h/d", env={"PW": "s3cret"})
    assert job.spec.engine.options["state"] == "postgresql://u:s3cret@h/d"
    assert "s3cret" not in job.dump()
    assert job.is_secret(("engine", "options", "state"))


def test_text_that_only_looks_like_a_variable_is_no_secret() -> None:
    job = loaded(f"{TEXT}=${{PW}}", env={"PW": "s3cret"})
    assert job.spec.roles["a"].options["kwargs"]["text"] == "${PW}"
    assert not job.is_secret(("roles", "a", "options", "kwargs", "text"))


@pytest.mark.parametrize(
    "override",
    ["edges.sizes.a.g=20MB", "edges.sizes[a.g]=20MB", 'edges.sizes."a.g"=20MB', 'edges.sizes["a.g"]=20MB',
     "edges.sizes={a.g: 20MB}", "edges[sizes].a.g=20MB"],
)  # fmt: skip
def test_a_key_with_a_dot_can_be_named(override: str) -> None:
    assert loaded(override).spec.edges.sizes == {"a.g": 20_000_000}


def test_keys_hold_what_brackets_and_quotes_enclose() -> None:
    params = loaded("params[a.b].c=1", 'params."x=y".z=2', "params[p:q]=3", "params.u:v=4").spec.params
    assert params == {"a.b": {"c": 1}, "x=y": {"z": 2}, "p:q": 3, "u:v": 4}
    assert loaded("roles.a.resources.custom.my.disk=2").spec.roles["a"].resources.custom == {"my.disk": 2.0}
    assert loaded("roles.a.runtime_env.env_vars.A=007").spec.roles["a"].runtime_env.env_vars == {"A": "007"}
    assert loaded("failover=[{use: a}]", "failover[0].use=b").spec.failover[0].use == "b"


@pytest.mark.parametrize("text", ["steps", "=5", ".a=5", "a..b=5", "[a=5", 'a"b=5', ""])
def test_text_that_is_no_override_is_refused(text: str) -> None:
    assert refusal(text).what == f"{text!r} is not an override"


def test_an_encoded_override_is_the_same_override() -> None:
    assert text_of("%roles.a.options.kwargs.text=a%20%23%20b%C3%A9%25") == "a # bé%"
    assert refusal("%steps=%23").where == "command line: steps=#"


@pytest.mark.parametrize(
    "value", [len, object(), {1, 2}, b"x", {(1, 2): 3}, {None: 1}, 1j], ids=lambda value: type(value).__name__
)
def test_values_that_a_job_file_cannot_hold_are_refused_with_their_place(value: Any) -> None:
    job = Job("b", steps=1).role("a", use="function", options={"kwargs": [{"x": value}]}).flow("f.py:f")
    with pytest.raises(JobFileError) as caught:
        job.validate()
    assert caught.value.where == "Job('b'): roles.a.options.kwargs.0.x"
    assert "package.module:name" in (caught.value.remedy or "")


def test_a_value_within_itself_is_refused() -> None:
    inside: list[Any] = []
    inside.append(inside)
    with pytest.raises(JobFileError, match="cannot hold list"):
        Job("b", steps=1, params={"x": inside}).text()


def test_paths_and_tuples_become_strings_and_lists() -> None:
    assert literal({"a": (Path("/x/${y}"), 1.5)}) == {"a": ["/x/$${y}", 1.5]}
