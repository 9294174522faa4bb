"""`track` for Lightning's Trainer, as a callback.

``Trainer(…, callbacks=[KeepState()])`` keeps the module, optimizers, schedulers, callbacks and loops after each step.
From the state of its loops, Lightning continues in the middle of an epoch, but it draws the epoch's batches from the
first one again, unless the loader can continue itself. So the callback restores the state from which the epoch's order
was drawn, and skips the batches that were trained on. If the Trainer also resumes from a checkpoint (`ckpt_path`), the
newer of the two states counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from rolemesh_launch import tracking
from rolemesh_launch.states import generators, set_generators
from rolemesh_launch.tracking import Run, track

__all__ = ["KeepState"]

RESTORE = "_restore_modules_and_callbacks"


class _State:
    """A `Stateful` made of two functions."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self.state_dict, self.load_state_dict = get, put


class KeepState(Callback):
    """Keeps the training state after each step of an optimizer, and restores the state of an earlier life.

    Without a job it does nothing. Batches come in the same order in every life if the order is drawn from the global
    generators of torch, numpy or Python when an epoch begins, or if it follows from the epoch, as with Lightning's own
    distributed sampler. The step that ends an epoch is kept when the next epoch begins or training ends. The work of
    the Trainer at an epoch's end (validation, schedulers, callbacks) is repeated in every life.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._order: dict[str, Any] = {}
        self._random: dict[str, Any] = {}
        self._kept = self._before = 0
        self._resumed = self._begins = False

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The strategy has wrapped the module and created the optimizers."""
        self._order = _drawn_from()
        self._choose(trainer)
        others = [found for found in trainer.callbacks if found is not self]  # type: ignore[attr-defined]
        objects: dict[str, Any] = {
            "module": pl_module,
            "loops": trainer.fit_loop,
            "order": _State(lambda: self._order, self._put_order),
            "position": _State(lambda: {"step": trainer.global_step, "before": self._before}, self._put_before),
            "callbacks": _State(lambda: _states(others), lambda states: _put(others, states)),
            "precision": trainer.precision_plugin,
        }
        objects |= {f"optimizer_{at}": found for at, found in enumerate(trainer.optimizers)}
        objects |= {f"scheduler_{at}": found.scheduler for at, found in enumerate(trainer.lr_scheduler_configs)}
        self._run = track(**objects)
        self._random = _drawn_from()
        self._resumed, self._kept = self._run.step > 0, trainer.global_step

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The loader exists: skip the batches of the current epoch that were trained on."""
        vars(trainer._checkpoint_connector).pop(RESTORE, None)
        if not self._resumed:
            self._kept, self._begins = trainer.global_step, True
            return
        self._resumed = False
        loop = trainer.fit_loop
        fetcher, loader, done = loop._data_fetcher, loop._combined_loader, loop.epoch_loop.batch_progress.current.ready
        assert fetcher is not None
        assert loader is not None
        if all(hasattr(found, "load_state_dict") for found in loader.flattened):
            return
        for found in loader.flattened:
            _set_sampler_epoch(found, trainer.current_epoch)
        set_generators(self._order, 0)
        iter(fetcher)
        for _ in range(done - self._before):
            next(fetcher)
        fetcher.fetched, fetcher.done = 0, False
        if done:
            set_generators(self._random, 0)

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The previous epoch is done, and the order of this one is drawn next."""
        if trainer.current_epoch and trainer.global_step > self._kept:
            loop = trainer.fit_loop.epoch_loop
            progress = (loop.batch_progress, loop.scheduler_progress, loop.automatic_optimization.optim_progress)
            for found in progress:
                found.reset_on_run()
            self._order, self._before = _drawn_from(), 0
            self._done(trainer)

    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        """From a checkpoint of its own, Lightning takes the rest of an epoch from the first batch on."""
        if self._begins:
            self._begins = False
            self._before = trainer.fit_loop.epoch_loop.batch_progress.current.ready - 1
            epochs = trainer.fit_loop.epoch_progress
            # From the checkpoint of an epoch's last batch, Lightning begins the next epoch without counting it.
            if epochs.current.ready == trainer.current_epoch:
                epochs.increment_ready()
                epochs.increment_started()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is done, and possibly a step."""
        if trainer.global_step > self._kept and not trainer.is_last_batch:
            self._done(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The last epoch is done."""
        if trainer.global_step > self._kept:
            self._done(trainer)

    def _done(self, trainer: Trainer) -> None:
        assert self._run is not None
        self._kept = trainer.global_step
        self._run.done()

    def _choose(self, trainer: Trainer) -> None:
        """Let the Trainer restore nothing if the kept state counts."""
        connector = trainer._checkpoint_connector
        own = int(connector._loaded_checkpoint.get("global_step", 0))
        if trainer.strategy.restore_checkpoint_after_setup:
            own = 1  # it is not known yet, and the kept state has at least one step
        if said := tracking.newer("position", lambda position: position["step"], own):
            rank_zero_info(f"rolemesh: {said}")
        if tracking.current is not None and tracking.current.kept("position") is not None:
            connector._loaded_checkpoint = {}
            setattr(connector, RESTORE, lambda *_: None)

    def _put_before(self, position: dict[str, int]) -> None:
        self._before = position["before"]

    def _put_order(self, order: dict[str, Any]) -> None:
        self._order = order


def _drawn_from() -> dict[str, Any]:
    """Return the states of this rank's global generators."""
    return {name: found.data for name, found in generators(0, 1).items()}


def _states(callbacks: list[Callback]) -> dict[str, Any]:
    return {found.state_key: state for found in callbacks if (state := found.state_dict())}


def _put(callbacks: list[Callback], states: Mapping[str, Any]) -> None:
    for found in callbacks:
        if found.state_key in states:
            found.load_state_dict(dict(states[found.state_key]))
