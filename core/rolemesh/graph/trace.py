"""Run a flow once, in the driver, and return its logical graph, or all of its errors at once.

`trace` needs only the shapes of the roles; `trace_job` finds them from a job file and its selected
plugins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rolemesh.api.import_ref import ImportRef, written
from rolemesh.api.workload import Workload
from rolemesh.errors import FlowError, RolemeshError, raise_all
from rolemesh.graph.checks import RoleShape, check_params
from rolemesh.graph.flow import Flow, JobHandle, place_of_error
from rolemesh.graph.logical import LogicalGraph
from rolemesh.graph.tracer import GraphTracer

if TYPE_CHECKING:
    from rolemesh.job_file import JobFile


RESERVED_ROLES = ("name", "steps", "seed", "feedback")


def trace(
    target: Flow,
    roles: Mapping[str, RoleShape],
    *,
    steps: int | None,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
    credits: int | None = None,
    name: str | None = None,
) -> LogicalGraph:
    """Return the logical graph of `target` on `roles`. `credits` is the default of its edges,
    `name` the name of the job.

    Raises `FlowError`, or `Problems` if there are several, each with the flow's file and line.
    """
    tracer = GraphTracer(roles, credits)
    for role in roles:
        if role in RESERVED_ROLES:
            tracer.error(
                f"a role cannot be called {role!r}: a flow reads job.{role}",
                target.where,
                "rename it",
            )
    tracer.errors += check_params(target, params or {})
    raise_all(tracer.errors)
    try:
        target.function(
            JobHandle(tracer, name=name or target.name, steps=steps, seed=seed), **(params or {})
        )
    except RolemeshError as error:
        raise_all([*tracer.errors, error])
    except Exception as error:
        what = f"the flow raised {type(error).__name__}: {error}"
        wrapped = FlowError(
            what, where=place_of_error(error) or target.where, remedy="correct the flow"
        )
        wrapped.__cause__ = error
        raise_all([*tracer.errors, wrapped])
    return tracer.finish(target)


def trace_job(job: JobFile, workloads: Mapping[str, Any], flow: Flow | None = None) -> LogicalGraph:
    """Return the logical graph of a job file. `workloads` has the class `cls` and the checked
    `options` of each role.

    `flow` is the flow that the job file names, if the caller has it already; then it is not
    imported.
    """
    spec = job.spec
    shapes: dict[str, RoleShape] = {}
    errors: list[RolemeshError] = []
    for name, role in spec.roles.items():
        workload: type[Workload] = workloads[name].cls
        options = workloads[name].options
        try:
            shapes[name] = RoleShape(
                role.world_size,
                dict(workload.operators(options)),
                services=dict(workload.services(options)),
                together=workload.group == "collective" and role.world_size > 1,
                stateful=workload.stateful(options),
                repeats=workload.repeats(options),
            )
        except RolemeshError as error:
            errors.append(error)
        except Exception as error:
            what = (
                f"the operators of workload {role.use!r} cannot be read: "
                f"{type(error).__name__}: {error}"
            )
            where = job.where(("roles", name))
            remedy = "correct the role's options or its plugin"
            wrapped = FlowError(what, where=where, remedy=remedy)
            wrapped.__cause__ = error
            errors.append(wrapped)
    raise_all(errors)
    target = flow or _load(spec.flow, str(job.base), job.where(("flow",)))
    return trace(
        target,
        shapes,
        steps=spec.steps,
        seed=spec.seed,
        params=spec.params,
        credits=spec.edges.credits,
        name=spec.name,
    )


def _load(text: str, base: str, where: str) -> Flow:
    ref = ImportRef(text, base)
    remedy = "'package.module:name' or 'file.py:name'"
    try:
        remedy = " or ".join([] if ref.attr else written(ref, flows=True)) or remedy
        ref.check()
        target = ref.resolve()
    except ValueError as error:
        what = str(error).partition("; write ")[0]
        raise FlowError(what, where=where, remedy=f"write {remedy}") from error
    except RolemeshError:
        raise
    except Exception as error:
        what = f"importing the flow {text!r} raised {type(error).__name__}: {error}"
        raise FlowError(
            what, where=place_of_error(error) or where, remedy="correct the module of the flow"
        ) from error
    if not isinstance(target, Flow):
        what = f"{text!r} is a {type(target).__name__}, not a flow"
        raise FlowError(
            what, where=where, remedy=f"put @rolemesh.flow before `def {ref.attr}(job):`"
        )
    return target
