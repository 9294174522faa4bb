"""Select the environment variables of a command for its job's processes, if these do not inherit them. Pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["carried", "taken_up"]

NODES_OWN = {
    "CUDA_VISIBLE_DEVICES", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY", "HIP_VISIBLE_DEVICES", "HOME", "HOST", "HOSTNAME",
    "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "LS_COLORS", "MAIL", "NVIDIA_VISIBLE_DEVICES", "OLDPWD", "PATH", "PWD",
    "PYTHONHOME", "ROCR_VISIBLE_DEVICES", "SHELL", "SHLVL", "TEMP", "TERM", "TMP", "TMPDIR", "USER",
    "VIRTUAL_ENV", "_",
}  # fmt: skip
"""Variables that belong to a machine, an installation or a session."""
OTHERS = ("CONDA_", "KUBERNETES_", "OMPI_", "PMIX_", "PMI_", "RAY_", "ROLEMESH_", "SLURM_", "SSH_", "XDG_")
"""Prefixes of variables of programs that set their own on each node."""
PATHS = "PYTHONPATH"


def carried(environ: Mapping[str, str]) -> dict[str, str]:
    """Return those of `environ` that a job takes to other nodes, each byte of a value as a character, since a value may
    be no text. Relative entries of PYTHONPATH become absolute."""
    found = {name: value for name, value in environ.items() if name not in NODES_OWN and not name.startswith(OTHERS)}
    if found.get(PATHS):
        found[PATHS] = os.pathsep.join(os.path.abspath(path) for path in found[PATHS].split(os.pathsep))
    return {name: os.fsencode(value).decode("latin-1") for name, value in found.items()}


def taken_up(carried: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process with `environ` sets from the `carried` ones: its own entries of PYTHONPATH
    come last."""
    carried = {name: os.fsdecode(value.encode("latin-1")) for name, value in carried.items()}
    paths = [path for each in (carried, environ) for path in each.get(PATHS, "").split(os.pathsep) if path]
    return {**carried, **({PATHS: os.pathsep.join(dict.fromkeys(paths))} if paths else {})}
