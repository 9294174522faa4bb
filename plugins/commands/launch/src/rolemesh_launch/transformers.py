"""`track` for the Trainer of Hugging Face's ``transformers``, as one of its callbacks.

``Trainer(…, callbacks=[KeepState()])`` keeps model, optimizer, schedule and position after each step. A Trainer that
starts again has no way to begin in the middle, but for one of its own checkpoints. So the callback lets it find no
batches in the epochs that are done, and only the rest of them in the one that was under way.
"""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from rolemesh_launch.states import generators, set_generators
from rolemesh_launch.tracking import Run, track

__all__ = ["KeepState"]


class _Position:
    """Where the Trainer is: what it keeps in its `TrainerState`."""

    def __init__(self, state: TrainerState) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return {"global_step": self._state.global_step, "log_history": self._state.log_history}

    def load_state_dict(self, found: dict[str, Any]) -> None:
        for name, value in found.items():
            setattr(self._state, name, value)


class KeepState(TrainerCallback):
    """Keeps what is trained after each step of the optimizer, and takes up what an earlier life has left.

    It comes after the Trainer's own callbacks, and where there is no job it does nothing. The loader's batches must be
    the same in every life, as those of accelerate's seeded sampler are.
    """

    def __init__(self) -> None:
        self._run: Run | None = None
        self._from = (0, 0)
        self._random: dict[str, Any] | None = None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any) -> None:
        """The model is wrapped, and the optimizer made."""
        names = {"model": at["model"], "optimizer": at["optimizer"], "schedule": at["lr_scheduler"]}
        self._run = track(**names, position=_Position(state))
        if not self._run.step:
            return
        loader, steps = at["train_dataloader"], args.gradient_accumulation_steps
        self._from = divmod(state.global_step, -(-len(loader) // steps))
        self._random = generators(0, 1)

    def on_epoch_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any) -> None:
        """Batches that were trained on are skipped."""
        loader, (epochs, steps) = at["train_dataloader"], self._from
        if self._random is not None:
            done = loader.iteration < epochs
            loader.skip_batches = len(loader) if done else steps * args.gradient_accumulation_steps

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any) -> None:
        """The first step after those that were done: what was random since then has not been."""
        if self._random is not None:
            set_generators(self._random, 0)
            self._random, at["train_dataloader"].skip_batches = None, 0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any) -> None:
        """A step is done."""
        if self._run is not None:
            self._run.done()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **at: Any
    ) -> TrainerControl:
        """An epoch without a batch is no reason to stop, or to evaluate and save again."""
        if self._random is not None:
            control.should_training_stop = state.global_step >= state.max_steps
            control.should_evaluate = control.should_save = control.should_log = False
        return control
