"""`track` for the Trainer of Hugging Face's ``transformers``, as a callback.

``Trainer(…, callbacks=[KeepState()])`` keeps model, optimizer, schedule and position. A restarted Trainer continues in
the middle by its own means: it skips finished epochs, and the batches of the current one that were trained on. If it
also resumes from a checkpoint of its own, the newer of the two states counts.

The state is kept when the next step begins. By then everything after the previous step has happened: evaluation,
logging, the end of an epoch and the start of the next one. Each of these may draw random numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rolemesh_launch import tracking
from rolemesh_launch.states import generators, set_generators
from rolemesh_launch.tracking import Run, track

__all__ = ["KeepState"]

KEPT = ("_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")
"""Attributes of a Trainer from which it reports losses and speed."""


class _State:
    """A `Stateful` made of two functions."""

    def __init__(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        self.state_dict, self.load_state_dict = get, put


class KeepState(TrainerCallback):
    """Keeps the training state after each step of the optimizer, and restores the state of an earlier life.

    Put it last in the list of callbacks. Without a job it does nothing. The order of the batches must follow from the
    epoch (as with accelerate's seeded sampler), from the global generators when the epoch begins, or from the data
    itself (as with a stream).
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._trainer: Any = None
        self._kept = 0
        self._epoch, self._steps = 0, 0
        self._order: dict[str, Any] = {}

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any) -> None:
        """The model is wrapped, and the optimizer exists."""
        self._trainer = _trainer()
        said = tracking.newer("position", lambda position: position["state"]["global_step"], state.global_step)
        if said and args.process_index == 0:
            print(f"rolemesh: {said}", file=sys.stderr, flush=True)
        self._order = _drawn_from()
        names = {"model": at["model"], "optimizer": at["optimizer"], "schedule": at["lr_scheduler"]}
        self._run = track(**names, position=_State(self._position, self._go_to))
        self._kept = state.global_step
        self._follow(self._run.step > 0)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any) -> None:
        """The order of the epoch's batches is drawn next."""
        self._order = _drawn_from()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any) -> None:
        """The previous step is done, with everything after it."""
        if self._run is not None and state.global_step > self._kept:
            self._kept = state.global_step
            self._run.done()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any) -> None:
        """One more step of this epoch."""
        self._steps += 1

    def _position(self) -> dict[str, Any]:
        trainer = self._trainer
        plain = (int, float, str, bool, list)
        state = {
            field.name: value
            for field in fields(trainer.state)
            if isinstance(value := getattr(trainer.state, field.name), plain) and not field.name.startswith("is_")
        }
        return {
            "state": state,
            "trainer": {name: getattr(trainer, name) for name in KEPT if hasattr(trainer, name)},
            "loss": trainer._tr_loss.detach().cpu(),
            "callbacks": [found.state()["attributes"] for found in self._stateful()],
            "epoch": self._epoch, "steps": self._steps, "order": self._order,
        }  # fmt: skip

    def _go_to(self, found: dict[str, Any]) -> None:
        trainer = self._trainer
        for name, value in found["state"].items():
            setattr(trainer.state, name, value)
        for name, value in found["trainer"].items():
            setattr(trainer, name, value)
        trainer._tr_loss += found["loss"].to(trainer._tr_loss.device)
        for callback, attributes in zip(self._stateful(), found["callbacks"], strict=True):
            vars(callback).update(attributes)
        self._epoch, self._steps, self._order = found["epoch"], found["steps"], found["order"]

    def _stateful(self) -> list[Any]:
        """Return the callbacks that have a state, such as the one for early stopping."""
        return [found for found in self._trainer.callback_handler.callbacks if hasattr(found, "state")]

    def _follow(self, continues: bool) -> None:
        """Follow the position of the Trainer in its data. If it `continues`, let it begin at the kept position, as it
        does from one of its own checkpoints."""
        trainer, random = self._trainer, _drawn_from()
        epoch, steps, order = (self._epoch, self._steps, self._order) if continues else (-1, 0, {})
        vars(trainer).pop("_run_epoch", None)
        run_epoch, load = trainer._run_epoch, trainer._load_rng_state
        module: Any = sys.modules[Trainer.__module__]
        skip = module.skip_first_batches

        def followed(**given: Any) -> None:
            done = given["steps_trained_in_current_epoch"]
            if given["epoch"] < epoch:
                return
            if given["epoch"] == epoch:
                set_generators(order, 0)
                self._order, done = order, steps * trainer.args.gradient_accumulation_steps
                # At an epoch's beginning all that is random follows from what the order is drawn from.
                own = {"resume_from_checkpoint": "" if done else None, "epochs_trained": epoch}
                given |= own | {"steps_trained_in_current_epoch": done}
            elif given["resume_from_checkpoint"] is None or given["epoch"] > given["epochs_trained"]:
                done = 0
            self._epoch, self._steps = given["epoch"], done // trainer.args.gradient_accumulation_steps
            ignores = trainer.args.ignore_data_skip
            trainer.args.ignore_data_skip = ignores and not done
            trainer._load_rng_state = kept if given["epoch"] == epoch else own_state
            if given["epoch"] == epoch and done and getattr(given["train_dataloader"], "num_workers", 0):
                given["train_dataloader"] = _Repeated(given["train_dataloader"], done)
                module.skip_first_batches = lambda loader, batches: loader
            try:
                run_epoch(**given)
            finally:
                module.skip_first_batches = skip
                trainer._load_rng_state, trainer.args.ignore_data_skip = load, ignores

        def kept(_: str | None) -> None:
            set_generators(random, 0)

        def own_state(checkpoint: str | None) -> None:
            load(checkpoint)
            if not self._steps:
                self._order = _drawn_from()  # the epoch's order is drawn after this

        trainer._run_epoch = followed


class _Repeated:
    """A DataLoader whose first batches are made again and left out.

    A worker of a DataLoader draws random numbers, such as those of an augmentation, from a generator of its own.
    accelerate would skip the numbers of the rows only, so later rows would have other random numbers than in an
    undisturbed run.
    """

    def __init__(self, loader: Any, batches: int) -> None:
        self._loader, self._batches = loader, batches

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._loader), self._batches, None)

    def __len__(self) -> int:
        return len(self._loader)


def _drawn_from() -> dict[str, Any]:
    """Return the states of this process's global generators."""
    return {name: found.data for name, found in generators(0, 1).items()}


def _trainer() -> Trainer:
    """Return the calling Trainer, which is not passed to callbacks. Raises `RuntimeError` if no Trainer is calling."""
    frame = sys._getframe()
    while frame is not None:
        if isinstance(found := frame.f_locals.get("self"), Trainer):
            if not hasattr(found, "_run_epoch"):
                raise RuntimeError("KeepState needs a newer transformers: pip install -U 'transformers>=5,<6'")
            return found
        frame = frame.f_back  # type: ignore[assignment]
    raise RuntimeError("KeepState is a callback of transformers' Trainer")
