"""The manifests of docs/deploy.md: what KubeRay's custom resources take, and what rolemesh needs of them."""

from __future__ import annotations

import copy
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import safetensors.numpy
import yaml

from rolemesh.cli import main
from rolemesh_durable.options import DurableOptions

ROOT = Path(__file__).resolve().parents[1]
MANIFESTS = sorted((ROOT / "docs/kuberay").glob("*.yaml"))
SCHEMA = json.loads((ROOT / "tests/data/kuberay.schema.json").read_text())


def loaded(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def cluster_of(manifest: Any) -> Any:
    spec = manifest["spec"]
    return spec["rayClusterSpec"] if manifest["kind"] == "RayJob" else spec


def containers(manifest: Any) -> Iterator[tuple[Any, Any]]:
    """Each group's pod and its container, the head's first."""
    cluster = cluster_of(manifest)
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        yield pod, container


manifests = pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)


def test_deploy_has_a_manifest_for_a_cluster_and_one_for_a_job() -> None:
    assert [loaded(path)["kind"] for path in MANIFESTS] == ["RayCluster", "RayJob"]
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


@manifests
def test_a_manifest_fits_the_schema_of_its_kind(path: Path) -> None:
    manifest = loaded(path)
    schema = {"$ref": f"#/$defs/{manifest['kind']}", "$defs": SCHEMA["$defs"]}
    jsonschema.validate(manifest, schema, jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda cluster: cluster.update(rayversion=cluster.pop("rayVersion")),
        lambda cluster: cluster["headGroupSpec"]["rayStartParams"].update({"num-cpus": 0}),
        lambda cluster: cluster["workerGroupSpecs"][0].update(replicas="2"),
        lambda cluster: cluster["workerGroupSpecs"][0].pop("template"),
        lambda cluster: cluster["headGroupSpec"]["template"]["spec"]["volumes"][1]["emptyDir"].update(sizeLimit="8 GB"),
    ],
    ids=["misspelled", "a number for a string", "a string for a number", "missing", "no quantity"],
)
@manifests
def test_the_schema_refuses_what_kubernetes_would(path: Path, spoil: Callable[[Any], None]) -> None:
    manifest = copy.deepcopy(loaded(path))
    spoil(cluster_of(manifest))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(manifest, SCHEMA, jsonschema.Draft202012Validator)


@manifests
def test_every_pod_has_the_runs_shared_memory_and_time_to_end(path: Path) -> None:
    for pod, container in containers(loaded(path)):
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert "claimName" in mounts[env["ROLEMESH_RUNS"]]["persistentVolumeClaim"]
        assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory"
        assert "SYS_PTRACE" in container["securityContext"]["capabilities"]["add"]
        assert pod["terminationGracePeriodSeconds"] > DurableOptions.model_fields["stop_grace_s"].default
    _, head = next(containers(loaded(path)))
    wait = next(variable["value"] for variable in head["env"] if variable["name"] == "RAY_JOB_STOP_WAIT_TIME_S")
    assert float(wait) > DurableOptions.model_fields["stop_grace_s"].default


@manifests
def test_the_manifests_run_the_ray_that_is_pinned(path: Path) -> None:
    pinned = re.search(r"^ray==(\S+)", (ROOT / "requirements/lock.txt").read_text(), flags=re.MULTILINE)
    assert pinned
    assert cluster_of(loaded(path))["rayVersion"] == pinned[1]
    assert f"rayproject/ray:{pinned[1]}-" in (ROOT / "docs/deploy.md").read_text()


def test_the_manifests_are_what_the_commands_of_the_document_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = (ROOT / "docs/deploy.md").read_text().replace("\\\n", " ")
    commands = re.findall(r"^(rolemesh submit .* -o) docs/kuberay/(\S+)$", document, flags=re.MULTILINE)
    assert sorted(name for _, name in commands) == [path.name for path in MANIFESTS]
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "model/model.safetensors").write_bytes(safetensors.numpy.save({}))
    monkeypatch.setenv("MODEL", str(tmp_path / "model"))
    monkeypatch.delenv("DB_PASSWORD", raising=False)
    monkeypatch.chdir(ROOT)
    for command, name in commands:
        monkeypatch.setattr(sys, "argv", [*shlex.split(command), str(tmp_path / name)])
        with pytest.raises(SystemExit) as ended:
            sys.exit(main())
        assert ended.value.code in (0, None)
        assert (tmp_path / name).read_text() == (ROOT / "docs/kuberay" / name).read_text(), "run the command again"


def test_the_entry_point_is_a_command_line_that_rolemesh_takes() -> None:
    entrypoint = loaded(ROOT / "docs/kuberay/rayjob.yaml")["spec"]["entrypoint"]
    # The submitter's shell, `ray job submit`, and the head's shell.
    program, *arguments = shlex.split(subprocess.list2cmdline(shlex.split(entrypoint)))
    assert program == "rolemesh"
    command = [sys.executable, "-m", "rolemesh.cli", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.startswith("error: there is no file /runs/jobs/grpo/job.yaml"), done.stderr
