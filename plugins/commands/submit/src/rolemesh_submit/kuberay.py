"""A job as a RayJob, or a RayCluster for jobs like it (ray.io/v1, KubeRay 1.6)."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import quote

import yaml

from rolemesh.errors import PlacementError
from rolemesh_durable.api.jobs import options_in
from rolemesh_submit.groups import Group
from rolemesh_submit.submission import OBJECT_STORE_BYTES, Submission, comment, memory_gb, ray_version

LONGEST_NAME = 47
"""Maximum length of a RayJob's name. KubeRay appends a suffix, and a service's name has at most 63 characters."""
HEAD = {"cpu": "4", "memory": "16G"}
PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]+")
"""Strings that need no quotes in any version of YAML, except for the words for true, false and null."""
WORDS = {"yes", "no", "on", "off", "true", "false", "null"}
EXPANDED = re.compile(r"\$(?=[$(])")
"""A dollar sign that Kubernetes reads as the start of ``$(VARIABLE)``, or as half of a doubled one."""
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
"""Value of a label, and with at least one character its name."""
PREFIX = re.compile(r"(?=.{1,253}/)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*/")
"""Domain before the name of a label."""
STOP_MORE_S, END_MORE_S = 25, 55
KEPT_S = 600
SHARED = 0.5
"""Maximum share of a pod's memory that is shared memory."""


class Pods(NamedTuple):
    """Settings that only Kubernetes needs. `secrets`: variable → the secret and the key in it, if they are not the
    default."""

    image: str
    claim: str = "rolemesh-runs"
    secrets: Mapping[str, tuple[str, str]] = {}
    cluster_only: bool = False


class _Dumper(yaml.SafeDumper):
    """Writes no anchors, because pods are read one by one. Strings stay strings in YAML 1.1, too (``1e3``, ``y``)."""

    def ignore_aliases(self, data: Any) -> bool:
        """Always."""
        return True


def _represent(dumper: _Dumper, text: str) -> yaml.Node:
    style = None if PLAIN.fullmatch(text) and text.lower() not in WORDS else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent)


def manifest(submission: Submission, pods: Pods) -> str:
    """Return the manifest as YAML, with the requirements in its head. Raises `PlacementError` for a label that
    Kubernetes does not take."""
    _check_labels(submission.groups)
    kind = "RayCluster" if pods.cluster_only else "RayJob"
    name, cluster = resource_name(submission.name), _cluster(submission, pods)
    spec = cluster if pods.cluster_only else _job(submission) | {"rayClusterSpec": cluster}
    data = {"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    made = f"Made by `rolemesh submit --to kuberay`. Job {submission.name}, workers: {submission.size}."
    head = "".join(map(comment, (made, *notes(submission, pods))))
    return head + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=math.inf)


def notes(submission: Submission, pods: Pods) -> list[str]:
    """Return the requirements for applying it, one line each."""
    lines = [
        "needs: KubeRay 1.6 or newer (authOptions, labels, resources)",
        *(f"the image {pods.image} has {need}" for need in submission.needs),
        f"the claim {pods.claim} is ReadWriteMany: {submission.runs} is one folder in all pods",
    ]
    if not pods.cluster_only:
        lines.append(f"the job file, its flow and what it names are there, too: {submission.job}")
    for name, secret, key, optional in _references(submission, pods):
        told = ", if it is to be set" if optional else ""
        lines.append(f"{name} comes out of the secret {secret}, key {key}{told}; its value is not in this file")
    for group in submission.groups:
        if group.number < group.most:
            lines.append(
                f"elastic: it begins with {group.number} workers and grows in place when `replicas` is raised, "
                f"to {group.most} (--nodes {group.most} begins with all of them)"
            )
    return lines


def secret_commands(submission: Submission, pods: Pods) -> list[str]:
    """Return the commands that create the secrets from variables of a shell."""
    literals: dict[str, list[str]] = {}
    for name, secret, key, optional in _references(submission, pods):
        if not optional:
            literals.setdefault(secret, []).append(f'{shlex.quote(f"--from-literal={key}=")}"${name}"')
    return [
        f"kubectl create secret generic {shlex.quote(secret)} {' '.join(each)}" for secret, each in literals.items()
    ]


def resource_name(job: str) -> str:
    """Return a job's name in the form of Kubernetes. If it is another one, six digits of a hash keep two jobs apart, as
    in ``grpo-v2-366854`` for ``GRPO_v2``.
    """
    name = re.sub(r"[^a-z0-9-]+", "-", job.lower())
    name = ("" if name[0].isalpha() else "job-") + name
    if name == job and len(job) <= LONGEST_NAME and job[-1] != "-":
        return name
    digest = sha256(job.encode()).hexdigest()[:6]
    return f"{name[: LONGEST_NAME - 7].rstrip('-')}-{digest}"


def entrypoint(submission: Submission) -> str:
    """Return the command for the shell of the submitter's pod.

    That shell passes words to ``ray job submit``, which quotes them for the shell of the head's pod. An override with
    characters that are special to a shell is percent-encoded, so its quotes cannot be lost or doubled.
    """
    told = ["rolemesh", "run", submission.job, "--address", "auto", *submission.resuming]
    return " ".join(map(_word, [*told, *map(encoded, submission.prepared.overrides)]))


def encoded(override: str) -> str:
    """Return the same override (see `rolemesh.job_file.overrides`) in characters that are special to no shell."""
    if shlex.quote(override) == override:
        return override
    return f"%{quote(override, safe='=:,./@+', errors='surrogateescape')}"


def _check_labels(groups: Sequence[Group]) -> None:
    """The CRD takes any label, but then the operator refuses the cluster, and says so only in an event."""
    for label, value in (item for group in groups for item in group.node.labels.items()):
        name = PREFIX.sub("", label, count=1)
        if not name or not LABEL.fullmatch(name) or not LABEL.fullmatch(value):
            what = f"Kubernetes does not take the label {label!r} with the value {value!r}"
            remedy = "use letters, digits, '.', '_' and '-', at most 63, with a letter or a digit at both ends"
            raise PlacementError(what, where="--nodes", remedy=remedy)


def _word(word: str) -> str:
    """Return a word for a shell in a container's arguments, in which Kubernetes expands ``$(NAME)`` and halves
    ``$$``."""
    return EXPANDED.sub("$''", shlex.quote(word))  # such a word is in single quotes; they end and begin again


def _job(submission: Submission) -> dict[str, Any]:
    deadline = {"activeDeadlineSeconds": submission.time_s} if submission.time_s else {}
    return {
        "entrypoint": entrypoint(submission),
        "submissionMode": "K8sJobMode",
        "backoffLimit": 0,  # another try would start from the beginning
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": KEPT_S,
        **deadline,
    }


def _cluster(submission: Submission, pods: Pods) -> dict[str, Any]:
    store = {"object-store-memory": str(OBJECT_STORE_BYTES)}
    stop_s = math.ceil(options_in(submission.prepared.selection).stop_grace_s)
    secrets = [
        {
            "name": name,
            "valueFrom": {"secretKeyRef": {"name": secret, "key": key} | ({"optional": True} if may else {})},
        }
        for name, secret, key, may in _references(submission, pods)
    ]
    wait = {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": str(stop_s + STOP_MORE_S)}
    head = _pod(submission, pods, HEAD, [wait, *secrets], stop_s)
    workers = [_workers(submission, pods, group, number, stop_s) for number, group in enumerate(submission.groups)]
    return {
        "rayVersion": ray_version(),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"num-cpus": "0", **store}, "template": head},
        "workerGroupSpecs": [worker | {"rayStartParams": dict(store)} for worker in workers],
    }


def _workers(submission: Submission, pods: Pods, group: Group, number: int, stop_s: int) -> dict[str, Any]:
    node = group.node
    amounts: dict[str, str | int] = {"cpu": f"{node.cpu:g}", "memory": f"{math.ceil(memory_gb(node))}G"}
    if node.gpu:
        amounts["nvidia.com/gpu"] = int(node.gpu)
    custom = {name: f"{amount:g}" for name, amount in sorted(node.custom.items()) if name != "memory_gb"}
    return {
        "groupName": f"workers-{number}",
        "replicas": group.number,
        "minReplicas": group.least,
        "maxReplicas": group.most,
        **({"resources": custom} if custom else {}),
        **({"labels": dict(sorted(node.labels.items()))} if node.labels else {}),
        "template": _pod(submission, pods, amounts, [], stop_s),
    }


def _pod(
    submission: Submission, pods: Pods, amounts: Mapping[str, str | int], env: list[dict[str, Any]], stop_s: int
) -> dict[str, Any]:
    memory = int(str(amounts["memory"]).removesuffix("G"))
    plain = {"ROLEMESH_RUNS": submission.runs, **submission.settings}
    container = {
        "name": "ray",
        "image": pods.image,
        "resources": {"requests": dict(amounts), "limits": dict(amounts)},
        "env": [*({"name": name, "value": EXPANDED.sub("$$", value)} for name, value in plain.items()), *env],
        "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},  # py-spy takes the stacks of ranks that hang
        "volumeMounts": [{"name": "runs", "mountPath": submission.runs}, {"name": "shm", "mountPath": "/dev/shm"}],
    }
    volumes = [
        {"name": "runs", "persistentVolumeClaim": {"claimName": pods.claim}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{math.ceil(memory * SHARED)}G"}},
    ]
    grace = stop_s + END_MORE_S
    return {"spec": {"terminationGracePeriodSeconds": grace, "containers": [container], "volumes": volumes}}


def _references(submission: Submission, pods: Pods) -> list[tuple[str, str, str, bool]]:
    """Return, for each variable, its name, the secret, the key, and whether it may be missing."""
    usual = f"{resource_name(submission.name)}-env"
    return [
        (each.name, *pods.secrets.get(each.name, (usual, each.name)), not each.required)
        for each in submission.variables
    ]
