"""From the devices of a plan to those that an agent really holds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["visible_devices"]


def visible_devices(planned: Iterable[int], on_node: Iterable[int], environ: Mapping[str, str]) -> str:
    """``CUDA_VISIBLE_DEVICES`` of a rank that the plan gives the devices `planned`.

    `on_node` are all devices that the job's plan uses on this node. Where the backend has handed the agent devices of
    its own choice (its ``CUDA_VISIBLE_DEVICES`` names as many), they stand for the plan's, in order; otherwise the
    plan's indices are the node's.
    """
    held = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    used = sorted(set(on_node))
    if len(held) != len(used):
        return ",".join(str(index) for index in planned)
    return ",".join(held[used.index(index)] for index in planned)
