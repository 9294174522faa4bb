"""Settings on which a trainer and the roles before it must agree, checked before the job starts. Does not import torch.

Rows carry their sampling parameters, so most settings are checked from rows while the job runs. This module checks
those that are known earlier, and one that rows do not carry: whether token ids mean the same text.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rolemesh.errors import OptionsError
from rolemesh_training.options import (
    DPOOptions,
    GRPOOptions,
    HuggingFaceOptions,
    PolicyOptions,
    ValueOptions,
    loss_kind,
)
from rolemesh_training.sampling import faults

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["disagreements", "flow_calls", "frozen", "without_effect"]


class FlowCall(NamedTuple):
    """A call of the flow: an operator of `role`, whose `workload` has `options`.

    `inputs` are the calls whose values it takes, as their places in the flow.
    """

    role: str
    operator: str
    workload: type[Any]
    options: Any
    inputs: Sequence[int]


def flow_calls(job: CheckedJob) -> list[FlowCall]:
    """Return the calls of a job that `Workload.check_flow` gets."""
    uses = job.roles
    return [
        FlowCall(
            op.role,
            op.operator,
            uses[op.role].cls,
            uses[op.role].options,
            [edge.src for edge in job.graph.edges if edge.dst == op.id],
        )
        for op in job.graph.ops
    ]


def disagreements(options: Any, role: str, calls: Sequence[FlowCall]) -> Iterator[OptionsError]:
    """Yield the settings of a trainer of `role` that do not fit those of the roles whose rows it takes."""
    told: set[str] = set()
    for call in calls:
        if call.role != role or not isinstance(options, HuggingFaceOptions):
            continue
        before = _before(call, calls)
        samplers = [(each, said) for each in before if (said := _sampling(each)) is not None]
        found = [*_tokenizers(options, samplers)] if _takes_ids(options, call.operator) else []
        if call.operator == "train":
            found += _distributions(options, role, samplers)
            found += _references(options, before, [said for _, said in samplers])
        for error in found:
            if error.what not in told:
                told.add(error.what)
                yield error


def frozen(options: Any, role: str, calls: Sequence[FlowCall]) -> Iterator[OptionsError]:
    """Yield an error if the flow trains a frozen role."""
    if options.frozen and any(call.role == role and call.operator == "train" for call in calls):
        yield OptionsError(
            f"the flow calls {role}.train, and the role is frozen",
            where="frozen",
            remedy="set frozen to false, or leave the call out of the flow",
        )


def without_effect(options: Any, role: str, calls: Sequence[FlowCall]) -> Iterator[OptionsError]:
    """Yield settings with which updates of `role` change nothing, or with which unused values are computed, as far as
    the flow shows.

    A role of another kind between the calls may add columns, so these are warnings.
    """
    kind = loss_kind(options.loss)
    if not isinstance(options, HuggingFaceOptions) or not issubclass(kind, PolicyOptions):
        return
    found = {error.what: error for call in calls if call.role == role for error in _wasted(options, call, calls)}
    yield from found.values()


def _wasted(options: HuggingFaceOptions, call: FlowCall, calls: Sequence[FlowCall]) -> Iterator[OptionsError]:
    if call.operator != "train":
        return
    before = _before(call, calls)
    coefficient = options.loss_options.get("kl_coef") or 0
    references = [each for each in before if each.operator == "logprobs"]
    if coefficient and not references:
        yield OptionsError(
            f"kl_coef is {coefficient}, and no call before {call.role}.train is `logprobs` of a reference; unless "
            "another role adds the column ref_logprobs, the first update fails",
            where="loss_options.kl_coef",
            remedy=f"call logprobs of a frozen role on the rows before {call.role}.train, or leave kl_coef out",
        )
    direct = next((each for each in references if each in [calls[place] for place in call.inputs]), None)
    if direct is not None and not coefficient:  # a call in between may read the column
        yield OptionsError(
            f"{direct.role}.logprobs has no effect on the loss, because kl_coef is 0",
            where="loss_options",
            remedy=f"set roles.{call.role}.options.loss_options.kl_coef above 0, or leave the call out of the flow",
        )
    if not issubclass(loss_kind(options.loss), GRPOOptions):
        return
    for each in before:
        if _sampling(each) is not None and _completions(each) == 1:
            yield OptionsError(
                f"{each.role}.{each.operator} makes one completion for each prompt, so each advantage within its group "
                f"is 0 and {call.role}.train changes nothing",
                where="loss",
                remedy=f"set roles.{each.role}.options.samples to 2 or more",
            )


def _completions(call: FlowCall) -> int | None:
    """Return the number of completions per prompt of a sampling call; None if its workload does not say.

    The workload says so with `completions`: see `rolemesh_training.contract.Sampler`.
    """
    if not isinstance(inspect.getattr_static(call.workload, "completions", None), (classmethod, staticmethod)):
        return None
    found: int | None = call.workload.completions(call.options, call.operator)
    return found


def _before(call: FlowCall, calls: Sequence[FlowCall]) -> list[FlowCall]:
    """Return the calls whose values reach `call`, back to the sampling calls. The calls before those only make
    prompts."""
    found: dict[int, FlowCall] = {}
    ahead = [*call.inputs]
    while ahead:
        place = ahead.pop()
        if place in found:
            continue
        found[place] = calls[place]
        if _sampling(calls[place]) is None:
            ahead += calls[place].inputs
    return [found[place] for place in sorted(found)]


def _sampling(call: FlowCall) -> Mapping[str, Any] | None:
    """Return how the operator samples, if its workload says so: see `rolemesh_training.contract.Sampler`."""
    if not isinstance(inspect.getattr_static(call.workload, "sampling", None), (classmethod, staticmethod)):
        return None
    found: Mapping[str, Any] | None = call.workload.sampling(call.options, call.operator)
    return found


def _takes_ids(options: HuggingFaceOptions, operator: str) -> bool:
    """Return whether the operator reads the sampler's token ids. A role in between may make `input_ids` with a
    tokenizer."""
    kinds = (PolicyOptions, DPOOptions, ValueOptions)
    return operator in ("logprobs", "values") or (operator == "train" and issubclass(loss_kind(options.loss), kinds))


def _distributions(
    options: HuggingFaceOptions, role: str, samplers: Sequence[tuple[FlowCall, Mapping[str, Any]]]
) -> Iterator[OptionsError]:
    """Yield samples that a policy loss cannot correct."""
    if not issubclass(loss_kind(options.loss), PolicyOptions):
        return
    stated = options.loss_options.get("temperature")
    for call, said in samplers:
        names = {"rollout": f"roles.{call.role}.options", "loss": f"roles.{role}.options.loss_options"}
        for name, what, remedy in faults(said, stated, reweighted=options.corrects, **names):
            where = "loss_options.temperature" if name == "temperature" and said.get(name) else "loss_options"
            yield OptionsError(f"of {call.role}.{call.operator}, {what}", where=where, remedy=remedy)


def _references(
    options: HuggingFaceOptions, before: Sequence[FlowCall], sampled: Sequence[Mapping[str, Any]]
) -> Iterator[OptionsError]:
    """Yield references whose log-probabilities are computed at another temperature than the loss's."""
    kind = loss_kind(options.loss)
    if not issubclass(kind, (PolicyOptions, DPOOptions)):
        return
    follows = issubclass(kind, PolicyOptions)  # where it states nothing, it takes the temperature of the rows
    known = {float(said["temperature"]) for said in sampled if said.get("temperature")}
    own = options.loss_options.get("temperature")
    for call in before:
        if call.operator != "logprobs" or not isinstance(call.options, HuggingFaceOptions):
            continue
        theirs = call.options.sampled_at
        if follows and own is None and theirs is None:
            continue  # both take the temperature of the same rows
        wanted = known if follows and own is None and known else {own or 1.0}
        says = {theirs} if theirs is not None else known or {1.0}
        if says != wanted:
            one, other = (" and ".join(str(each) for each in sorted(values)) for values in (says, wanted))
            yield OptionsError(
                f"the reference {call.role} computes log-probabilities at temperature {one}, the loss at {other}",
                where="loss_options.temperature",
                remedy=f"set roles.{call.role}.options.logprobs.temperature to {other}",
            )


def _tokenizers(
    options: HuggingFaceOptions, samplers: Sequence[tuple[FlowCall, Mapping[str, Any]]]
) -> Iterator[OptionsError]:
    """Yield samplers whose token ids mean other tokens than those of the trainer's model."""
    for call, _ in samplers:
        theirs = getattr(call.options, "model", None)
        if not isinstance(theirs, str) or theirs == options.model:
            continue
        one, other = _vocabulary(Path(options.model)), _vocabulary(Path(theirs))
        if one and other and one != other:
            differ = sum(1 for token in one.keys() | other.keys() if one.get(token) != other.get(token))
            yield OptionsError(
                f"{options.model} has another tokenizer than {theirs} of {call.role}: {differ} tokens have other ids",
                where="model",
                remedy="give both roles models with the same tokenizer",
            )


@cache
def _vocabulary(folder: Path) -> Mapping[str, int]:
    """Return each token of the folder's ``tokenizer.json`` with its id; empty if the file cannot be read."""
    try:
        found = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        words = found["model"].get("vocab", {})
        if not isinstance(words, dict):  # unigram: pairs of a token and its score
            words = {word: place for place, (word, _) in enumerate(words)}
        return {**words, **{token["content"]: token["id"] for token in found.get("added_tokens", ())}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
