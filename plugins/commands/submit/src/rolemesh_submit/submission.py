"""A job to submit: its nodes, its command, its variables, and the distributions that it needs."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from typing import NamedTuple

from rolemesh.api.cluster import NodeView
from rolemesh.errors import JobFileError, PluginError
from rolemesh.job.prepared import Prepared
from rolemesh.job_file import JobFile
from rolemesh.job_file.environment import Expansion
from rolemesh.job_file.model import NAME
from rolemesh.kinds.installed import distribution, version
from rolemesh.plugins.discovery import discover, find
from rolemesh_durable.api.jobs import options_in
from rolemesh_durable.stores import scheme
from rolemesh_submit.groups import GB_PER_CPU, Group

ENGINE = ("rolemesh", "rolemesh-commands", "rolemesh-durable", "rolemesh-ray")
OBJECT_STORE_BYTES = 500_000_000
"""Size of Ray's object store in bytes. rolemesh hardly uses it."""


class Variable(NamedTuple):
    """A ``${NAME}`` in a job file or an override. `required`: at least one use has no default."""

    name: str
    required: bool


class Submission(NamedTuple):
    """The settings that both targets need.

    - `job`: path of the job file on the cluster.
    - `runs`: the runs folder there.
    - `settings`: plain variables.
    - `resume`: a run to resume.
    """

    prepared: Prepared
    groups: tuple[Group, ...]
    job: str
    runs: str
    settings: Mapping[str, str] = {}
    resume: str | None = None
    time_s: int | None = None

    @property
    def name(self) -> str:
        """The job's name on the cluster. The caller has checked with `check_name` that it contains no secret."""
        job = self.prepared.job
        return str(Expansion(self.settings, job.places).expand(job.raw["name"], ("name",)))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables without a plain value. Each of them may be a secret, because only the user knows."""
        return tuple(each for each in variables(self.prepared.job) if each.name not in self.settings)

    @property
    def resuming(self) -> list[str]:
        """Return the arguments of `rolemesh run` that name the run to resume."""
        return ["--resume", self.resume] if self.resume else []

    @property
    def size(self) -> str:
        """The nodes in words."""
        told = []
        for node, least, count, most in self.groups:
            number = f"{count}" if least == most else f"{count} ({least} to {most})"
            gpus = f" and {node.gpu:g} GPUs" if node.gpu else ""
            told.append(f"{number} x {node.cpu:g} CPUs{gpus}")
        return ", ".join(told)

    @property
    def distributions(self) -> dict[str, str]:
        """The distributions that every node needs, with their versions here."""
        prepared = self.prepared
        names = {*ENGINE, *(record.distribution for record in prepared.selection.records if record.distribution)}
        state = options_in(prepared.selection).state
        names.add(find("stores", scheme(state), discover(("stores",)), "state").distribution)
        return {name: _version(name) for name in sorted(names)} | {"ray": ray_version()}

    @property
    def needs(self) -> list[str]:
        """Return the lines about the distributions to install."""
        installed = [f"{name}=={number}" for name, number in self.distributions.items()]
        python = ".".join(platform.python_version_tuple()[:2])
        # As written: a requirement may have a token in its address.
        roles = self.prepared.job.raw["roles"].items()
        own = [
            f"what pip needs for role {name}: {' '.join(role['runtime_env']['pip'])}"
            for name, role in roles
            if role["runtime_env"]["pip"]
        ]
        return [f"Python {python}, and: {' '.join(installed)}", *own]


def comment(line: str) -> str:
    """Return the line as a comment of YAML or a shell. Line breaks and control characters are escaped."""
    shown = (char if char.isprintable() else char.encode("unicode_escape").decode() for char in line)
    return f"# {''.join(shown)}\n"


def check_name(job: JobFile, settings: Mapping[str, str]) -> None:
    """Raise `JobFileError` if the job's name, which is in all output, may be secret, or is invalid with `settings`."""
    probe = Expansion({}, job.places)
    probe.expand(job.raw["name"], ("name",))
    for name in sorted(probe.used.keys() - settings.keys()):
        what = f"the job's name comes from the variable {name}, and the output would show it"
        raise JobFileError(what, where=job.where(("name",)), remedy=f"--env {name}=VALUE says that it is no secret")
    if not NAME.fullmatch(name := str(Expansion(settings, job.places).expand(job.raw["name"], ("name",)))):
        what = f"with the variables of --env the job's name is {name!r}"
        remedy = "a name has letters, digits, '.', '_' and '-', at most 63 of them"
        raise JobFileError(what, where=job.where(("name",)), remedy=remedy)


def variables(job: JobFile) -> tuple[Variable, ...]:
    """Return the variables of a job file and its overrides, by name."""
    probe = Expansion({}, job.places)
    probe.expand(job.raw)
    names = sorted(probe.used)

    def required(name: str) -> bool:
        others = Expansion({other: "1" for other in names if other != name}, job.places)
        others.expand(job.raw)
        return bool(others.errors)

    return tuple(Variable(name, required(name)) for name in names)


def memory_gb(node: NodeView) -> float:
    """Return the memory of a node in 10^9 bytes: the planned amount, or one derived from its CPUs."""
    return node.custom.get("memory_gb") or GB_PER_CPU * node.cpu


def ray_version() -> str:
    """Return the Ray version that rolemesh-ray requires. Raises `PluginError` if rolemesh-ray is not installed."""
    _version("rolemesh-ray")
    found = (
        re.fullmatch(r"ray==([\w.]+)", each.replace(" ", "")) for each in distribution("rolemesh-ray").requires or ()
    )
    return next(match[1] for match in found if match)


def _version(name: str) -> str:
    try:
        return version(name)
    except PluginError as error:
        what = f"{name} is not installed here, so the version that the nodes need is unknown"
        raise PluginError(what, remedy=error.remedy) from None
