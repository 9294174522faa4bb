"""Count free resources, with each GPU on its own."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from rolemesh.api.cluster import ClusterView
from rolemesh.placement.plan import Slot

EXACT = 9
"""Decimal places to which sums of resource shares are rounded."""


class Capacity:
    """The free resources of each node while a strategy takes slots, with each GPU on its own.

    Whole GPUs are taken in the order of their device index. A fraction is taken from the device
    with the least free share that is sufficient, so that whole devices stay free.
    """

    def __init__(self, cluster: ClusterView, slots: Iterable[Slot] = ()) -> None:
        """`slots` are taken from the start. Slots on nodes outside `cluster` do not count."""
        self.nodes = tuple(node.id for node in cluster.nodes)
        self._amounts = {node.id: {"cpu": node.cpu, **node.custom} for node in cluster.nodes}
        self._devices = {node.id: [1.0] * int(node.gpu) for node in cluster.nodes}
        for slot in slots:
            if slot.node in self._amounts:
                self._use(slot)

    def free(self, node: str) -> dict[str, float]:
        """Return the free resources of `node`, by name. ``gpu`` is the sum over its devices."""
        return {"gpu": round(sum(self._devices[node]), EXACT), **self._amounts[node]}

    def short(
        self, node: str, needs: Mapping[str, float], forbidden: Collection[int] = frozenset()
    ) -> tuple[str, ...]:
        """Return the names of the resources of which `node` has too little; empty if ``{"cpu": …,
        "gpu": …, …}`` fits.

        `forbidden` are devices that must not be used.
        """
        amounts = self._amounts[node]
        rest = {n: amounts.get(n, 0.0) - need for n, need in needs.items() if n != "gpu"}
        missing = [n for n, left in rest.items() if round(left, EXACT) < 0]
        if self._choose(node, needs.get("gpu", 0.0), forbidden) is None:
            missing.append("gpu")
        return tuple(missing)

    def take(
        self,
        slot_id: int,
        node: str,
        needs: Mapping[str, float],
        forbidden: Collection[int] = frozenset(),
    ) -> Slot | None:
        """Take a slot with `needs` on `node`, without its `forbidden` devices. Return None if it
        does not fit."""
        if self.short(node, needs, forbidden):
            return None
        gpu = needs.get("gpu", 0.0)
        custom = {
            name: amount for name, amount in needs.items() if name not in ("cpu", "gpu") and amount
        }
        devices = self._choose(node, gpu, forbidden) or ()
        slot = Slot(slot_id, node, needs.get("cpu", 0.0), gpu, devices, custom)
        self._use(slot)
        return slot

    def room(self, node: str, needs: Mapping[str, float], most: int) -> int:
        """Return how many slots with `needs` fit on `node`; at most `most`."""
        amounts = dict(self._amounts[node])
        devices = list(self._devices[node])
        count = next((count for count in range(most) if self.take(0, node, needs) is None), most)
        self._amounts[node] = amounts
        self._devices[node] = devices
        return count

    def give_back(self, slot: Slot) -> None:
        """Free a slot that was taken."""
        self._use(slot, -1)

    def _use(self, slot: Slot, sign: int = 1) -> None:
        amounts = self._amounts[slot.node]
        devices = self._devices[slot.node]
        for name, amount in {"cpu": slot.cpu, **slot.custom}.items():
            amounts[name] = round(amounts.get(name, 0.0) - sign * amount, EXACT)
        for index, share in slot.gpus:
            if index < len(devices):
                devices[index] = round(devices[index] - sign * share, EXACT)

    def _choose(
        self, node: str, gpu: float, forbidden: Collection[int]
    ) -> tuple[tuple[int, float], ...] | None:
        if not gpu:
            return ()
        devices = self._devices[node]
        whole = int(gpu)
        rest = round(gpu % 1, EXACT)
        chosen = [
            (index, 1.0)
            for index, left in enumerate(devices)
            if left == 1.0 and index not in forbidden
        ][:whole]
        if len(chosen) < whole:
            return None
        if rest:
            taken = {*forbidden, *(index for index, _ in chosen)}
            fits = [
                (left, index)
                for index, left in enumerate(devices)
                if index not in taken and left >= rest
            ]
            if not fits:
                return None
            chosen.append((min(fits)[1], rest))
        return tuple(chosen)
