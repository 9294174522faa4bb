"""Loading job files: values, overrides, variables, and the place of every error."""

import textwrap
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from rolemesh.errors import JobFileError, Problems, RolemeshError
from rolemesh.job_file import JobFile, JobSpec, load
from rolemesh.job_file.places import parse_yaml

JOB = """\
name: test
flow: flow.py:f
steps: 3
roles:
  trainer:
    use: fsdp
    world_size: 2
    options: {model: "${MODEL}", lr: 1e-5}
  data: {use: function, options: {token: ${TOKEN:-none}}}
placement: {use: pack, options: {depth: 1}}
"""
ENV = {"MODEL": "/models/a"}

Load = Callable[..., JobFile]


@pytest.fixture
def job(tmp_path: Path) -> Load:
    """Write a job file and load it."""

    def write_and_load(text: str = JOB, *overrides: str, env: dict[str, str] = ENV) -> JobFile:
        path = tmp_path / "job.yaml"
        path.write_text(textwrap.dedent(text))
        return load(path, overrides, env)

    return write_and_load


def errors_of(job: Load, *args: str, env: dict[str, str] = ENV) -> list[RolemeshError]:
    with pytest.raises((JobFileError, Problems)) as caught:
        job(*args, env=env)
    return list(getattr(caught.value, "errors", [caught.value]))


def only(job: Load, tmp_path: Path, *args: str, env: dict[str, str] = ENV) -> tuple[str, str, str]:
    """The single error: its place relative to the folder, cause and remedy."""
    [error] = errors_of(job, *args, env=env)
    return (error.where or "").replace(f"{tmp_path}/", ""), error.what, error.remedy or ""


def test_values_defaults_and_variables_are_filled_in(job: Load) -> None:
    spec = job().spec
    assert spec.roles["trainer"].options == {"model": "/models/a", "lr": 1e-5}
    assert spec.roles["data"].options == {"token": "none"}
    assert spec.roles["data"].world_size == 1
    assert spec.diagnosers == spec.observers == []


def test_paths_refer_to_the_folder_of_the_job_file(job: Load, tmp_path: Path) -> None:
    assert job().base == tmp_path


@pytest.mark.parametrize(
    ("override", "where", "what", "remedy"),
    [
        ("roles.trainer.world_sze=2", "roles.trainer.world_sze=2", "unknown key 'world_sze'", "'world_size'"),
        ("roles.trainer.world_size=two", "roles.trainer.world_size=two", "expected an integer, got 'two'", ""),
        ("roles.trainr.world_size=2", "roles.trainr.world_size=2", "there is no roles.trainr", "'trainer'"),
        ("edgs.credits=2", "edgs.credits=2", "there is no edgs", "'edges'"),
        ("steps.x=2", "steps.x=2", "steps is 3, so it has no 'x'", "set steps itself"),
        ("steps=[1", "steps=[1", "not valid YAML", "brackets"),
        ("roles.trainer.use:=null", "roles.trainer.use:=null", "expected a string, got nothing", "leave the key out"),
        ("roles.a-b={use: x}", "roles.a-b={use: x}", "not a Python identifier", ""),
        ("seed=-1", "seed=-1", "greater than or equal to 0", ""),
    ],
)
def test_a_wrong_override_is_quoted(job: Load, override: str, where: str, what: str, remedy: str) -> None:
    [error] = errors_of(job, JOB, override)
    place = error.where or ""
    assert place.startswith(f"command line: {where}") or (place.endswith(": roles") and "a-b" in override)
    assert what in error.what
    assert remedy in (error.remedy or "")


def test_the_error_for_a_wrong_override_shows_how_to_write_one(job: Load) -> None:
    [error] = errors_of(job, JOB, "validate")
    assert error.what == "'validate' is not an override"
    assert "steps=10" in (error.remedy or "")


def test_overrides_set_values_make_mappings_and_index_lists(job: Load) -> None:
    text = JOB + "failover: [{use: a}, {use: b}]\n"
    spec = job(
        text,
        "steps=7",
        "roles.trainer.options.betas=[0.9, 0.95]",
        "edges.credits=4",
        "failover.1.use=c",
        "placement.options.depth=2",
        "roles.eval={use: function}",
        "roles.eval.world_size=3",
    ).spec
    assert spec.steps == 7
    assert spec.roles["trainer"].options["betas"] == [0.9, 0.95]
    assert spec.edges.credits == 4
    assert [use.use for use in spec.failover] == ["a", "c"]
    assert spec.placement[0].options == {"depth": 2}
    assert spec.roles["eval"].world_size == 3


def test_an_index_reaches_a_single_placement_too(job: Load) -> None:
    assert job(JOB, "placement.0.options.depth=5").spec.placement[0].options == {"depth": 5}


def test_an_index_outside_a_list_is_refused(job: Load) -> None:
    [error] = errors_of(job, JOB + "failover: [{use: a}]\n", "failover.1.use=b")
    assert error.what == "failover is a list of 1, so '1' is not in it"
    assert error.remedy == "set failover or failover.0"


@pytest.mark.parametrize(
    ("line", "text", "what", "remedy"),
    [
        ("job.yaml:7: roles.trainer.world_sise", JOB.replace("world_size", "world_sise"), "unknown key", "world_size"),
        ("job.yaml:3: steps", JOB.replace("steps: 3", "steps: many"), "expected an integer, got 'many' (a string)", ""),
        ("job.yaml:1: flow", JOB.replace("flow: flow.py:f\n", ""), "'flow' is missing", "add it: flow:"),
        ("job.yaml:9: roles.data.use", JOB.replace("use: function, ", ""), "'use' is missing", "add it: use:"),
        ("job.yaml:10: placement.usee", JOB.replace("{use: pack,", "{use: pack, usee: x,"), "unknown key", "'use'"),
        ("job.yaml:10: placement", JOB.replace("{use: pack, options: {depth: 1}}", "pack"), "expected a list", ""),
        ("job.yaml:11: steps", JOB + "steps: 4\n", "duplicate key 'steps', first given on line 3", "remove one"),
        ("job.yaml:1: name", JOB.replace("name: test", "name: a/b"), "letters, digits", ""),
        ("job.yaml:6:14", JOB.replace("fsdp", "fsdp: x: y"), "not valid YAML: mapping values are not", "quotes"),
        ("job.yaml:4:1", JOB.replace("roles:", "\troles:"), "not valid YAML", "tabs"),
        ("job.yaml:6", JOB.replace("fsdp", "fs\x01dp"), "the character #x0001 is not allowed", "UTF-8"),
        ("job.yaml", "", "the job file is empty", "begin with"),
        ("job.yaml", "- a\n", "the job file is not a mapping", "begin with"),
        (
            "job.yaml:8: roles.trainer.options",
            JOB.replace('{model: "${MODEL}", lr: 1e-5}', "[]"),
            "a mapping, got a",
            "",
        ),
    ],
)
def test_an_error_names_file_line_and_path(
    job: Load, tmp_path: Path, line: str, text: str, what: str, remedy: str
) -> None:
    where, found, hint = only(job, tmp_path, text)
    assert where == line
    assert what in found
    assert remedy in hint


def test_a_misspelled_required_key_is_unknown_and_missing(job: Load) -> None:
    errors = errors_of(job, JOB.replace("steps: 3", "stepps: 3"))
    assert [(error.what, error.remedy) for error in errors] == [
        ("'steps' is missing", "add it: steps: …"),
        ("unknown key 'stepps'", "did you mean 'steps'?"),
    ]


def test_all_errors_are_reported_in_the_order_of_the_lines(job: Load, tmp_path: Path) -> None:
    text = JOB.replace("steps: 3", "steps: x").replace("world_size", "worldsize") + "sed: 1\n"
    places = [(error.where or "").removeprefix(f"{tmp_path}/") for error in errors_of(job, text)]
    assert places == ["job.yaml:3: steps", "job.yaml:7: roles.trainer.worldsize", "job.yaml:11: sed"]


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobFileError, match=r"there is no file .*nope\.yaml"):
        load(tmp_path / "nope.yaml")
    with pytest.raises(JobFileError, match="is a folder"):
        load(tmp_path)


def test_an_undefined_variable_names_itself_its_place_and_the_remedy(job: Load, tmp_path: Path) -> None:
    where, what, remedy = only(job, tmp_path, JOB, env={"MODLE": "x"})
    assert where == "job.yaml:8: roles.trainer.options.model"
    assert what == "the environment variable MODEL is not set; did you mean 'MODLE'?"
    assert "export MODEL=…" in remedy
    assert "${MODEL:-value}" in remedy


def test_a_variable_of_an_override_has_the_command_line_as_its_place(job: Load) -> None:
    [error] = errors_of(job, JOB, "roles.data.options.token:=${NOPE}")
    assert error.where == "command line: roles.data.options.token:=${NOPE}"


def test_plain_variables_are_typed_as_if_written_and_quoted_ones_are_strings(job: Load) -> None:
    text = JOB + 'params: {a: ${N}, b: "${N}", c: x${N}, d: $${N}, e: ${F}, f: ${EMPTY:-7}, g: ${B}}\n'
    params = job(text, env=ENV | {"N": "4", "F": "1e-3", "EMPTY": "", "B": "true"}).spec.params
    assert params == {"a": 4, "b": "4", "c": "x4", "d": "${N}", "e": 1e-3, "f": 7, "g": True}


def test_a_roles_environment_stays_text(job: Load) -> None:
    text = JOB.replace(
        "use: function,", "use: function, runtime_env: {env_vars: {PORT: ${N}, THREADS: 1, HASH: ${H}}},"
    )
    env = ENV | {"N": "0080", "H": "1e5"}
    variables = job(text, env=env).spec.roles["data"].runtime_env.env_vars
    assert variables == {"PORT": "0080", "THREADS": "1", "HASH": "1e5"}


def test_a_malformed_variable_is_refused(job: Load, tmp_path: Path) -> None:
    where, what, _ = only(job, tmp_path, JOB + "params: {a: '${1X}'}\n")
    assert (where, what) == ("job.yaml:11: params.a", "'${1X}' is not a variable")


def test_a_variables_value_is_neither_dumped_nor_shown_in_errors(job: Load, tmp_path: Path) -> None:
    loaded = job(JOB, env=ENV | {"TOKEN": "s3cret"})
    assert "s3cret" not in loaded.dump()
    [error] = errors_of(job, JOB.replace("steps: 3", "steps: ${TOKEN}"), env=ENV | {"TOKEN": "s3cret"})
    assert "s3cret" not in str(error)
    assert (error.where or "").endswith("job.yaml:3: steps")


def test_a_dump_loads_to_the_same_job(job: Load, tmp_path: Path) -> None:
    text = JOB + 'params: {a: "${N}", b: ${N}, c: "on", d: "1e5", e: $${X}, f: 2026-01-01, g: "007"}\n'
    env = ENV | {"N": "4"}
    first = job(text, "roles.trainer.world_size=5", env=env)
    (tmp_path / "dump.yaml").write_text(first.dump())
    again = load(tmp_path / "dump.yaml", (), env)
    assert again.spec == first.spec
    assert again.raw == first.raw


def test_raw_has_the_defaults(job: Load) -> None:
    raw = job().raw
    assert raw["seed"] == JobSpec.model_fields["seed"].default
    assert raw["roles"]["data"]["resources"] == {"cpu": 1.0, "gpu": 0.0, "memory_gb": 0.0, "custom": {}, "most": {}}
    assert raw["placement"] == [{"use": "pack", "options": {"depth": 1}}]


def test_yaml_words_have_the_meaning_of_yaml_1_2(job: Load) -> None:
    text = JOB + "params: {a: on, b: 2026-01-01, c: 1e5, d: 0x10, e: yes, f: null, g: 1_000, h: 010, i: 0o14}\n"
    assert job(text).spec.params == {
        "a": "on", "b": "2026-01-01", "c": 1e5, "d": 16, "e": "yes", "f": None, "g": 1000, "h": "010", "i": 12,
    }  # fmt: skip


@pytest.mark.parametrize("text", [".inf", ".Inf", "+.INF", "-.Inf", ".nan", ".NaN", ".NAN"])
def test_numbers_that_are_none_have_the_names_of_yaml_1_2(text: str) -> None:
    """https://yaml.org/spec/1.2.2/#1032-tag-resolution"""
    ((found,), _) = parse_yaml(f"[{text}]", "job.yaml")
    assert repr(found) == repr(float(text.replace(".", "")))


def test_a_second_merge_key_is_a_duplicate(job: Load, tmp_path: Path) -> None:
    text = JOB + "params: {<<: {a: 1}, <<: {a: 2}}\n"
    assert only(job, tmp_path, text)[1].startswith("duplicate key '<<'")


@pytest.mark.parametrize("keys", [("10", "1e1"), ("true", "True"), ("0o14", "12"), ("1", "true")])
def test_keys_that_python_takes_for_equal_are_duplicates(job: Load, tmp_path: Path, keys: tuple[str, str]) -> None:
    text = JOB + f"params: {{a: {{{keys[0]}: 1, {keys[1]}: 2}}}}\n"
    assert only(job, tmp_path, text)[1].startswith(f"duplicate key {keys[1]!r}, first given on line 11")


def test_a_quoted_key_is_a_plain_text(job: Load) -> None:
    """Its variables stay, and other YAML writers know its type."""
    text = JOB.replace("token:", "n: {'${U}': 1, '1': 2, 3: 4}, token:")
    keys = [*job(text).spec.roles["data"].options["n"]]
    assert keys == ["${U}", "1", 3]
    assert {type(key) for key in keys} == {str, int}


def test_anchors_and_merge_keys_keep_their_places(job: Load, tmp_path: Path) -> None:
    text = JOB.replace("data: {", "base: &b {use: function}\n  data: {<<: *b, ").replace("use: function, opt", "opt")
    assert job(text).spec.roles["data"].use == "function"
    where, _, _ = only(job, tmp_path, text.replace("{use: function}", "{use: 1}").replace("<<: *b", "use: function"))
    assert where == "job.yaml:9: roles.base.use"


def test_an_anchor_that_contains_itself_is_refused(job: Load, tmp_path: Path) -> None:
    where, what, _ = only(job, tmp_path, JOB + "params: &p {a: *p}\n")
    assert (where, what) == ("job.yaml:11: params.a", "an anchor contains itself")


@pytest.mark.parametrize(
    "more", ["[*{0}, *{0}, *{0}, *{0}, *{0}, *{0}]", "{{<<: [*{0}, *{0}, *{0}, *{0}, *{0}, *{0}]}}"]
)
def test_anchors_that_multiply_values_are_refused_before_they_fill_the_memory(
    job: Load, tmp_path: Path, more: str
) -> None:
    levels = "".join(f"  {b}: &{b} {more.format(a)}\n" for a, b in pairwise("abcdefghijkl"))
    where, what, remedy = only(job, tmp_path, f"{JOB}params:\n  a: &a {{x: 1, y: 2}}\n{levels}")
    assert what == "not valid YAML: more than 100000 values, with those that anchors repeat"
    assert where.startswith("job.yaml:")
    assert remedy == "move them into a file that an option names"


def test_the_method_where_finds_file_line_and_command_line(job: Load, tmp_path: Path) -> None:
    loaded = job(JOB, "roles.data.world_size=2")
    assert loaded.where(("roles", "trainer", "use")) == f"{tmp_path}/job.yaml:6: roles.trainer.use"
    assert loaded.where(("placement", 0, "use")) == f"{tmp_path}/job.yaml:10: placement.use"
    assert loaded.where(("roles", "data", "world_size")) == "command line: roles.data.world_size=2"
    assert loaded.where(("edges", "credits")) == f"{tmp_path}/job.yaml:1: edges.credits"


def test_an_error_that_names_a_path_gets_its_line(job: Load, tmp_path: Path) -> None:
    placed = job().placed(RolemeshError("bad", where="roles.trainer"))
    assert placed.where == f"{tmp_path}/job.yaml:5: roles.trainer"
    assert job().placed(RolemeshError("bad", where="flow.py:3")).where == "flow.py:3"
