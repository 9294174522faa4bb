"""Which build of torch to install, and from where. Pure: what the indexes offer in, a choice out; stdlib only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's index of CPU builds. PyPI has CUDA builds only, without a local version."""


@dataclass(frozen=True)
class Offer:
    """A torch that an index has: its version, as pip compares it, and its build, ``cpu`` or ``cuda``."""

    version: str
    build: str


@dataclass(frozen=True)
class Probe:
    """A question to an index: does it have this `requirement`? Without an `index`, the configured ones are asked."""

    requirement: str
    index: str | None = None


@dataclass(frozen=True)
class Choice:
    """The `requirement` to install, from `index` or from the configured ones, and the build that it gives."""

    requirement: str
    build: str
    index: str | None = None


@dataclass(frozen=True)
class Refusal:
    """No right build is to be had: the reason, and the setting of ROLEMESH_TORCH that works (None if none does)."""

    reason: str
    instead: str | None


def has_driver(listed: bool, present: Iterable[bool]) -> bool:
    """Whether there is an NVIDIA driver: ``nvidia-smi -L`` names a GPU, or one of the driver's files is present."""
    return listed or any(present)


def wanted(setting: str | None, earlier: str | None, driver: bool) -> str:
    """``cpu``, ``cuda`` or ``any``: what the user says, else what this environment was made with, else by the driver.

    Raises ValueError for a setting that is none of them.
    """
    if setting and setting not in ("cpu", "cuda", "any"):
        raise ValueError(f"ROLEMESH_TORCH={setting} is none of cpu, cuda, any")
    return setting or earlier or ("cuda" if driver else "cpu")


def build_of(version: str, requires: Iterable[str]) -> str:
    """The build of a torch with this version, which requires these distributions: ``cpu`` or ``cuda``."""
    if "+" in version:
        return "cpu" if version.split("+")[1].startswith("cpu") else "cuda"
    return "cuda" if any(re.match(r"(nvidia|cuda|triton)\b", each) for each in requires) else "cpu"


def decide(want: str, version: str, answers: Mapping[Probe, Offer | None], index: str) -> Probe | Choice | Refusal:
    """The next question, or the end of the matter.

    `answers` holds what was asked so far: an Offer, or None where an index has no such torch or cannot be reached.
    `index` is PyTorch's index of CPU builds, or its mirror.
    """
    labelled, plain = Probe(f"torch=={version}+cpu"), Probe(f"torch=={version}")
    exact, elsewhere = Probe(f"torch==={version}"), Probe(f"torch=={version}+cpu", index)
    for probe in {"cpu": (labelled, plain, elsewhere), "cuda": (plain, exact), "any": (plain,)}[want]:
        if probe not in answers:
            return probe
        offer = answers[probe]
        if offer is None or want not in (offer.build, "any"):
            continue
        requirement = probe.requirement if probe == exact else f"torch=={offer.version}"
        return Choice(requirement, offer.build, probe.index)
    has = answers[plain]
    what = f"only the {has.build.upper()} build" if has else "none, or does not answer"
    theirs = f"the configured package index has {what}"
    if want == "cpu":
        reason = f"no CPU build of torch {version} for this Python: {theirs}, and {index} has none or cannot be reached"
        return Refusal(reason, "any" if has else None)
    what = "CUDA build" if want == "cuda" else "build"
    return Refusal(f"no {what} of torch {version} for this Python: {theirs}", "cpu" if has else None)
