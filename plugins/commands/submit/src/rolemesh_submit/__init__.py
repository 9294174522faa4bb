"""``rolemesh submit``: write a job for a cluster's own scheduler, as a RayJob of KubeRay or an sbatch script."""

from __future__ import annotations

from rolemesh_submit.command import Submit
from rolemesh_submit.groups import Asked, Group, groups_of
from rolemesh_submit.kuberay import Pods, manifest
from rolemesh_submit.slurm import Allocation, script
from rolemesh_submit.submission import Submission, Variable

__all__ = [
    "Allocation",
    "Asked",
    "Group",
    "Pods",
    "Submission",
    "Submit",
    "Variable",
    "groups_of",
    "manifest",
    "script",
]
