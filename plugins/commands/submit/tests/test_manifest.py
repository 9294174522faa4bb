"""The manifest of `rolemesh submit --to kuberay`, and contents that it never has."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jsonschema
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rolemesh.api.cluster import NodeView
from rolemesh.cli import main
from rolemesh.errors import PlacementError
from rolemesh.job.prepared import Prepared, prepare
from rolemesh.job_file import load
from rolemesh.job_file.loading import Written
from rolemesh_submit import Asked, Group, Pods, Submission, groups_of, manifest
from rolemesh_submit.kuberay import resource_name, secret_commands

ROOT = Path(__file__).resolve().parents[4]
EXAMPLE = ROOT / "examples/hello"
SCHEMA = json.loads((ROOT / "tests/data/kuberay.schema.json").read_text())
AS_NEEDED = Asked()
SECRET = "hunter2-not-to-be-seen"
CRD = "ROLEMESH_KUBERAY_CRD"
ELASTIC = "roles.sink.world_size={min: 2, max: 8}"
GROUPS = "2x(cpu=4,gpu=1,memory_gb=64,custom.ssd=2,label.rack=a),1x(cpu=2,label.rack=b)"


def job(*overrides: str) -> Prepared:
    return prepare(Written((EXAMPLE / "job.yaml").read_text(), EXAMPLE, "job.yaml"), overrides)


JOB = job()


def submission(*overrides: str, asked: Asked = AS_NEEDED, **more: Any) -> Submission:
    prepared = job(*overrides)
    return Submission(prepared, groups_of(prepared, asked), "/runs/jobs/hello/job.yaml", "/runs", **more)


def made(submission: Submission, **pods: Any) -> Any:
    """The manifest, after it has been held against the schema."""
    data = yaml.safe_load(manifest(submission, Pods("jobs:1", **pods)))
    jsonschema.validate(data, SCHEMA, jsonschema.Draft202012Validator)
    return data


def test_elastic_roles_give_the_least_and_the_most_workers() -> None:
    (group,) = made(submission(ELASTIC, asked=Asked(cpus=1)))["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 5)


def test_groups_keep_their_sizes_labels_and_custom_resources() -> None:
    first, second = made(submission(asked=Asked(GROUPS)), cluster_only=True)["spec"]["workerGroupSpecs"]
    (container,) = first["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "4", "memory": "64G", "nvidia.com/gpu": 1}
    assert (first["replicas"], first["resources"], first["labels"]) == (2, {"ssd": "2"}, {"rack": "a"})
    (container,) = second["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "16G"}
    assert "resources" not in second


def test_a_variable_is_a_reference_to_a_secret_and_its_value_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", SECRET)
    monkeypatch.setenv("MAYBE", SECRET)
    monkeypatch.setenv("PLAIN", SECRET)
    env = "{A: '${TOKEN}', B: '${MAYBE:-x}', C: '${PLAIN}'}"
    written = (EXAMPLE / "job.yaml").read_text()
    text = written.replace("world_size: 2,", f"world_size: 2, runtime_env: {{env_vars: {env}}},")
    prepared = prepare(Written(text, EXAMPLE, "job.yaml"))
    one = Submission(prepared, groups_of(prepared, Asked()), "/runs/job.yaml", "/runs", {"PLAIN": "seen"})
    pods = Pods("jobs:1", secrets={"TOKEN": ("vault", "token")})
    told = manifest(one, pods)
    assert SECRET not in told
    cluster = made(one, secrets=pods.secrets)["spec"]["rayClusterSpec"]
    head, worker = (
        {each["name"]: each for each in group["template"]["spec"]["containers"][0]["env"]}
        for group in (cluster["headGroupSpec"], cluster["workerGroupSpecs"][0])
    )
    assert head["TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "vault", "key": "token"}}
    assert head["MAYBE"]["valueFrom"] == {"secretKeyRef": {"name": "hello-env", "key": "MAYBE", "optional": True}}
    assert head["PLAIN"]["value"] == worker["PLAIN"]["value"] == "seen"
    assert "TOKEN" not in worker
    assert secret_commands(one, pods) == ['kubectl create secret generic vault --from-literal=token="$TOKEN"']
    assert "TOKEN comes out of the secret vault, key token; its value is not in this file" in told


def shell(words: str) -> list[str]:
    """The words that a shell hands to a command."""
    done = subprocess.run(["sh", "-c", f"printf '%s\\0' {words}"], capture_output=True, check=True)
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]


def kubernetes(text: str, environment: Mapping[str, str]) -> str:
    """Return the arguments of a container. A known ``$(NAME)`` becomes its value, ``$$`` becomes one dollar sign."""
    names = re.compile(r"\$\$|\$\(([^)]*)\)")
    return names.sub(lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0]), text)


@pytest.fixture(scope="module")
def ray_submits() -> Callable[[list[str]], str]:
    """Return the command that the installed Ray's `ray job submit` gives the shell of the head's pod."""
    from ray.dashboard.modules.job import cli

    def submitted(words: list[str]) -> str:
        with pytest.MonkeyPatch.context() as patch:
            client = mock.Mock()
            patch.setattr(cli, "_get_sdk_client", lambda *_, **__: client)
            done = CliRunner().invoke(cli.submit, ["--no-wait", "--", *words], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return str(client.submit_job.call_args.kwargs["entrypoint"])

    return submitted


def overridden(overrides: Sequence[str]) -> Any:
    return load(Written((EXAMPLE / "job.yaml").read_text(), EXAMPLE, "job.yaml"), overrides).spec.params


HOSTILE = ["two words", "a  b", "a # b", "x: 1", "{x: 1}", "'", '"', "a\\", "$HOME", "$(hostname)", "`id`", "a\nb", "*",
           "-x", "$$", "$(PATH)", "~", "!", "%41", "é", "", "a;b", "\t"]  # fmt: skip


@pytest.mark.parametrize("by", ["ray", "list2cmdline"])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8")), max_size=30))
@example(texts=HOSTILE)
def test_overrides_reach_the_command_as_they_were_typed(
    by: str, texts: list[str], ray_submits: Callable[[list[str]], str]
) -> None:
    given = [f'params.p{n}="{text}"' if not text else f"params.p{n}={text}" for n, text in enumerate(texts)]
    prepared = replace(JOB, overrides=tuple(given))
    one = Submission(prepared, groups_of(prepared, AS_NEEDED), "/runs/my job/$(PATH)/job.yaml", "/runs", resume="x")
    told = yaml.safe_load(manifest(one, Pods("jobs:1")))["spec"]["entrypoint"]
    words = shell(kubernetes(told, {"PATH": "/bin", "HOME": "/root"}))
    there = shell(ray_submits(words) if by == "ray" else subprocess.list2cmdline(words))
    if by == "ray":
        assert there[:7] == ["rolemesh", "run", "/runs/my job/$(PATH)/job.yaml", "--address", "auto", "--resume", "x"]
    assert overridden(there[-len(given) :] if given else []) == overridden(given)


@given(st.text(st.characters(exclude_characters="\0", codec="utf-8")))
@example("$(RUNS)$$")
@example("y")
@example("1e3")
def test_values_names_and_paths_are_the_same_strings_behind_the_manifest(text: str) -> None:
    one = Submission(JOB, (Group(NodeView("n", cpu=4.0), 1, 1, 1),), "/job.yaml", f"/runs{text}", {"A": text}, None)
    data = yaml.safe_load(manifest(one, Pods(f"i{text}", claim=f"c{text}", secrets={})))
    spec = data["spec"]["rayClusterSpec"]
    (worker,) = spec["workerGroupSpecs"]
    (container,) = worker["template"]["spec"]["containers"]
    env = {each["name"]: kubernetes(each["value"], {"RUNS": "/x"}) for each in container["env"]}
    assert env == {"ROLEMESH_RUNS": f"/runs{text}", "A": text}
    assert container["image"] == f"i{text}"
    assert container["volumeMounts"][0]["mountPath"] == f"/runs{text}"


@pytest.mark.parametrize("text", ["y", "1e3", "on", "12:30", "007", "0o7", "~", "1_000", "=", "<<"])
def test_a_string_stays_one_for_every_version_of_yaml(text: str) -> None:
    assert f'value: "{text}"' in manifest(submission(settings={"A": text}), Pods("jobs:1"))


DNS = re.compile("[a-z]([a-z0-9-]{0,45}[a-z0-9])?")
"""A label of RFC 1035 with at most the 47 characters that KubeRay takes."""


@pytest.mark.parametrize("job", ["grpo", "a" * 47, "GRPO_v2.1", "7b", "a" * 63, "a" * 62 + "b", "x--", "-_9", "é"])
def test_a_name_is_one_that_kubernetes_takes(job: str) -> None:
    assert DNS.fullmatch(resource_name(job))
    assert resource_name(job) == job or not DNS.fullmatch(job)


def test_names_of_different_jobs_stay_different() -> None:
    jobs = ["a-b", "a.b", "A-b", "grpo-run", "GRPO_Run", "7b", "job-7b", *("a" * 62 + each for each in "abc")]
    assert len({resource_name(job) for job in jobs}) == len(jobs)


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def verb(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """`rolemesh submit` of the example, in a folder of its own."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["rolemesh", "submit", f"{EXAMPLE}/job.yaml", *arguments])
        with pytest.raises(SystemExit) as ended:
            sys.exit(main())
        return Done(int(ended.value.code or 0), *capsys.readouterr())

    monkeypatch.chdir(tmp_path)
    return run


def test_the_verb_writes_a_file_says_what_must_be_true_and_applies_nothing(
    verb: Callable[..., Done], tmp_path: Path
) -> None:
    given = ("--to", "kuberay", "--image", "jobs:1", "--time", "1-02:00:00")
    done = verb(*given, "-o", "out.yaml")
    assert done.code == 0, done.err
    assert [path.name for path in tmp_path.iterdir()] == ["out.yaml"]
    data = yaml.safe_load((tmp_path / "out.yaml").read_text())
    assert data["spec"]["activeDeadlineSeconds"] == 26 * 3600
    for words in ("the image jobs:1 has Python", "rolemesh-ray==", "ReadWriteMany", "$ kubectl apply -f out.yaml"):
        assert words in done.err
    assert verb(*given).out == (tmp_path / "out.yaml").read_text()
    assert "activeDeadlineSeconds" not in yaml.safe_load(verb(*given[:-1], "unlimited").out)["spec"]
    assert "#SBATCH --time=UNLIMITED" in verb("--to", "slurm", "--time", "UNLIMITED").out


def test_a_secret_that_is_not_set_here_need_not_be(verb: Callable[..., Done], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHO", raising=False)
    given = ("roles.sink.runtime_env.env_vars.A:=${WHO}", "--to", "kuberay", "--image", "jobs:1")
    assert "the environment variable WHO is not set" in verb(*given).err
    done = verb(*given, "--secret", "WHO=vault:who")
    assert done.code == 0, done.err
    assert "WHO comes out of the secret vault, key who; its value is not in this file" in done.err
    assert "WHO" not in os.environ


@pytest.mark.parametrize("target", [("kuberay", "--image", "jobs:1"), ("slurm",)], ids=lambda target: target[0])
def test_neither_names_nor_requirements_give_a_variable_away(
    verb: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, target: tuple[str, ...]
) -> None:
    monkeypatch.setenv("WHO", SECRET)
    done = verb("roles.sink.runtime_env.pip:=['numpy>2${WHO:-}']", "--to", *target)
    assert SECRET not in done.out + done.err
    done = verb("name:=${WHO}", "--to", *target)
    assert (done.code, SECRET in done.err, "--env WHO=VALUE" in done.err) == (2, False, True)
    assert verb("name:=${WHO}", "--env", "WHO=me", "--to", *target).code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--to", "kuberay"], "needs an image"),
        (["--to", "slurm", "--claim", "x"], "does not apply to slurm"),
        (["--to", "kuberay", "--image", "x", "--partition", "gpu"], "does not apply to kuberay"),
        (["--to", "slurm", "--claim", ""], "does not apply to slurm"),
        (["--to", "kuberay", "--image", "x", "--cluster-only", "--time", "5"], "--time does not apply to a RayCluster"),
        (["--to", "kuberay", "--image", "x", "--cluster-only", "--resume", "a"], "--resume does not apply"),
        (["--to", "kuberay", "--image", "x", "--secret", "A=my:b"], "the job file does not use ${A}"),
        (
            [
                "--to",
                "kuberay",
                "--image",
                "x",
                "roles.sink.runtime_env.env_vars:={A: '${WHO}'}",
                "--secret",
                "WHO=my:b",
                "--env",
                "WHO=1",
            ],
            "--secret WHO has no effect: --env gives",
        ),
        (["--to", "kuberay", "--image", "x", "--runs-dir", "runs"], "no absolute path"),
        (["--to", "kuberay", "--image", "x", "--env", "A"], "names no variable"),
        (["--to", "kuberay", "--image", "x", "--env", "Ä=b"], "names no variable"),
        (["--to", "kuberay", "--image", "x", "--secret", "A=:b"], "not a secret and a key"),
        (["--to", "kuberay", "--image", "x", "--secret", "A=my vault:b"], "not a secret and a key"),
        (["--to", "slurm", "name:=${WHO}", "--env", "WHO=a b"], "the job's name is 'a b'"),
        (["--to", "slurm", "--partition", "a b"], "no name of a partition"),
        (["--to", "slurm", "--time", "soon"], "is not a time"),
        (["--to", "slurm", "-o", "nowhere/x"], "cannot be written"),
    ],
)
def test_a_mistake_has_a_remedy(
    arguments: Sequence[str], words: str, verb: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHO", "me")
    done = verb(*arguments)
    assert (done.code, words in done.err, "→" in done.err) == (2, True, True), done.err


def closed(schema: Any) -> Any:
    """A structural schema of Kubernetes as JSON Schema, in which a field that it does not have is an error."""
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: closed(value) for key, value in schema.items() if key != "format"}
    if schema.get("x-kubernetes-int-or-string"):
        return {"anyOf": [{"type": "integer"}, {"type": "string", "pattern": schema.get("pattern", "")}]}
    if "properties" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        schema.setdefault("additionalProperties", False)
    return schema


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    """The schemas of RayJob and RayCluster as KubeRay has published them, by kind; unknown fields are errors."""
    found = {}
    for kind, name in (("RayJob", "rayjobs"), ("RayCluster", "rayclusters")):
        text = (Path(os.environ[CRD]) / f"ray.io_{name}.yaml").read_text()
        definition = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1")
        found[kind] = closed(version["schema"]["openAPIV3Schema"])
        found[kind]["properties"]["metadata"] = {"type": "object"}
    return found


needs_crds = pytest.mark.skipif(CRD not in os.environ, reason=f"{CRD} is not the folder of KubeRay's CRDs (crds/)")
MANIFESTS = {
    "as needed": {},
    "elastic": {"overrides": (ELASTIC,)},
    "several groups with GPUs, labels and custom resources": {"asked": Asked(GROUPS)},
    "variables, a time limit and a run to resume": {"settings": {"A": "b"}, "time_s": 60, "resume": "before"},
}


@pytest.mark.soak
@needs_crds
@pytest.mark.parametrize("cluster_only", [False, True], ids=["job", "cluster"])
@pytest.mark.parametrize("options", MANIFESTS.values(), ids=MANIFESTS)
def test_a_manifest_fits_the_custom_resource_as_it_was_published(
    options: dict[str, Any], cluster_only: bool, published: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHO", "me")
    secret = "roles.sink.runtime_env.env_vars:={A: '${WHO}'}"
    one = submission(*options.get("overrides", ()), secret, **{k: v for k, v in options.items() if k != "overrides"})
    data = made(one, cluster_only=cluster_only, claim="claim", secrets={"WHO": ("vault", "who")})
    validator = jsonschema.Draft202012Validator(published[data["kind"]])
    validator.validate(data)
    spec = data["spec"] if cluster_only else data["spec"]["rayClusterSpec"]
    for part in (spec["headGroupSpec"], spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]):
        part["mispelled"] = {}
        with pytest.raises(jsonschema.ValidationError, match="mispelled"):
            validator.validate(data)
        del part["mispelled"]


def differences(ours: Any, theirs: Any, at: str = "") -> Iterator[str]:
    """The fields of our schema that the published one does not have, or has with another type or requirement."""
    if "$ref" in ours:
        ours = SCHEMA["$defs"][ours["$ref"].rpartition("/")[2]]
    if "const" in ours or "pattern" in ours or "anyOf" in ours:
        return
    kind = theirs.get("type", "integer or string")
    if ours.get("type", "string") != kind and not (ours.get("type") == "number" and kind == "integer"):
        yield f"{at}: {ours.get('type')}, published: {kind}"
    if "enum" in theirs and not set(ours.get("enum", ())) <= set(theirs["enum"]):
        yield f"{at}: {ours.get('enum')}, published: {theirs['enum']}"
    if not set(theirs.get("required", ())) <= {
        *ours.get("required", ()),
        *theirs.get("x-kubernetes-list-map-keys", ()),
    }:
        yield f"{at}: requires {ours.get('required')}, published: {theirs['required']}"
    for name, field in ours.get("properties", {}).items():
        if at == "" and name == "metadata":
            continue
        if name in theirs.get("properties", {}):
            yield from differences(field, theirs["properties"][name], f"{at}.{name}")
        elif not theirs.get("x-kubernetes-preserve-unknown-fields"):
            yield f"{at}.{name}: not published"
    if "items" in ours:
        yield from differences(ours["items"], theirs["items"], f"{at}[]")


@pytest.mark.soak
@needs_crds
@pytest.mark.parametrize("kind", ["RayJob", "RayCluster"])
def test_the_schema_of_these_tests_has_no_field_that_is_not_published(kind: str, published: dict[str, Any]) -> None:
    assert list(differences(SCHEMA["$defs"][kind], published[kind])) == []


@pytest.mark.parametrize(
    "label", ["rack=a b", "rack=-a", "rack=a/b", f"rack={'a' * 64}", "a b=c", "A.B/c=d", "x/=d", "a/b/c=d"]
)
def test_a_label_that_the_operator_would_refuse_is_an_error_here(label: str) -> None:
    name, _, value = label.partition("=")
    group = Group(NodeView("n", cpu=4.0, labels={name: value}), 1, 1, 1)
    with pytest.raises(PlacementError, match="Kubernetes does not take the label"):
        manifest(Submission(JOB, (group,), "/job.yaml", "/runs"), Pods("i"))


@pytest.mark.parametrize("label", ["rack=", "rack=A.b_c-9", "ray.io/node-group=x", f"a={'a' * 63}"])
def test_a_label_that_the_operator_takes_is_in_the_manifest(label: str) -> None:
    name, _, value = label.partition("=")
    group = Group(NodeView("n", cpu=4.0, labels={name: value}), 1, 1, 1)
    data = yaml.safe_load(manifest(Submission(JOB, (group,), "/job.yaml", "/runs"), Pods("i")))
    assert data["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["labels"] == {name: value}
