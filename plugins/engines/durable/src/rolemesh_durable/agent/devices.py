"""Map the devices of a plan to the devices that an agent has. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

__all__ = ["visible_devices"]


def visible_devices(planned: Iterable[int], on_node: Iterable[int], environ: Mapping[str, str]) -> str:
    """Return ``CUDA_VISIBLE_DEVICES`` for a rank to which the plan gives the devices `planned`.

    `on_node` are all devices that the job's plan uses on this node. If the backend gave the agent devices of its own
    choice (its ``CUDA_VISIBLE_DEVICES`` names the same number), they replace the plan's, in order. Otherwise the plan's
    indices are those of the node.
    """
    held = [name for name in environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    used = sorted(set(on_node))
    if len(held) != len(used):
        return ",".join(str(index) for index in planned)
    return ",".join(held[used.index(index)] for index in planned)
