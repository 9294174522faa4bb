"""The interface of every trainer to a flow. The torch code behind it is imported in `setup`."""

from __future__ import annotations

import importlib.util
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rolemesh.api.batch import Batch, Shards
from rolemesh.api.partition import Sharded, Split
from rolemesh.api.workload import OperatorSpec, RankContext, State, Workload, operator
from rolemesh.errors import OptionsError, raise_all
from rolemesh_torch.model_folder import INDEX, WEIGHTS, config_of, damages, weight_files
from rolemesh_training.agreement import disagreements, flow_calls, frozen, without_effect
from rolemesh_training.options import ONE_THREAD, HuggingFaceOptions

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob
    from rolemesh_training.trainer import Trainer

__all__ = ["TrainerWorkload", "check_folder"]


_OF_TASK = {"causal_lm": ("logprobs",), "value": ("values",), "classification": ("scores",), "module": ()}


def check_folder(options: HuggingFaceOptions) -> None:
    """Check that the model folder has the files that `init` and `task` need, and that they are whole."""
    folder = Path(options.model)
    if not folder.is_dir():
        raise OptionsError(
            f"the model folder {folder} does not exist",
            where="model",
            remedy="set options.model to a Hugging Face model folder; relative paths start at the job file",
        )
    if not (folder / "config.json").is_file():
        raise OptionsError(
            f"the model folder {folder} has no config.json",
            where="model",
            remedy="options.model must be a folder written by save_pretrained() or downloaded from a model hub",
        )
    raise_all(damages(folder, weights=options.init == "pretrained"))
    if options.init == "pretrained" and not weight_files(folder):
        raise OptionsError(
            f"the model folder {folder} has neither {WEIGHTS} nor {INDEX}",
            remedy="put the weights there, or set options.init to random for new weights from its config.json",
        )
    if options.lora is not None and importlib.util.find_spec("peft") is None:
        raise OptionsError(
            "adapters are peft's, which is not installed", where="lora", remedy='pip install "rolemesh-training[lora]"'
        )
    if options.task == "classification" and config_of(folder).get("pad_token_id") is None:
        raise OptionsError(
            f"{folder}/config.json has no pad_token_id, which says where a row of a classifier ends",
            where="task",
            remedy="set pad_token_id there to a token that ends no row",
        )


class TrainerWorkload(Workload):
    """The operators and the life of a trainer. A subclass sets `Options` and creates its `Trainer` in `make`.

    `version` counts the finished `train` calls: 0 is the initial weights. It is the entry ``__version__`` of `weights`,
    and part of the snapshot.
    """

    group: ClassVar[Literal["independent", "collective"]] = "collective"
    deterministic: ClassVar[bool] = True
    lends: ClassVar[Collection[str]] = ("weights",)
    preload: ClassVar[Sequence[str]] = (
        "rolemesh_training.trainer",
        "rolemesh_training.losses",
        "transformers.models.auto.modeling_auto",
        "transformers.models.llama.modeling_llama",
    )
    env: ClassVar[Mapping[str, str]] = {
        "OMP_NUM_THREADS": ONE_THREAD,
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }

    engine: Trainer

    @classmethod
    def operators(cls, options: Any) -> Mapping[str, OperatorSpec]:
        """Return `train`, `weights`, and the operators of the model's head."""
        for_heads = {name for names in _OF_TASK.values() for name in names}
        own = _OF_TASK[getattr(options, "task", "causal_lm")]
        return {n: spec for n, spec in super().operators(options).items() if n in own or n not in for_heads}

    def make(self, ctx: RankContext) -> Trainer:
        """Return the rank's trainer. Called in `setup`."""
        raise NotImplementedError

    @classmethod
    def stateful(cls, options: Any) -> bool:
        """Return False for a frozen role, whose weights come from `options.model` each time."""
        return not options.frozen

    @classmethod
    def varies(cls, options: Any) -> bool:
        """Return True with ``deterministic: false``: the last bits of a repeated call's result may differ."""
        return not options.deterministic

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """Check that the model folder has the files that `init` needs."""
        check_folder(options)

    @classmethod
    def check_flow(cls, options: Any, role: str, job: CheckedJob) -> None:
        """Check that the rows of the role are sampled, and their reference computed, in the way that its loss
        expects."""
        calls = flow_calls(job)
        raise_all([*frozen(options, role, calls), *disagreements(options, role, calls)])

    @classmethod
    def warnings(cls, options: Any, role: str, job: CheckedJob) -> Iterable[OptionsError]:
        """Yield settings of a policy loss with which an update changes nothing, or that nothing in the flow uses."""
        return without_effect(options, role, flow_calls(job))

    @classmethod
    def export(cls, options: Any, state: State, folder: Path) -> None:
        """Write a Hugging Face folder: all files of `options.model` except its weights, and the parameters in float32.

        Its config names the class of the task, so a critic or a classifier loads with its head. With `lora` write
        peft's folder of the adapters.
        """
        if options.lora is not None:
            from rolemesh_training import lora

            lora.export(options, state["model"], folder)
            return
        from rolemesh_training.export import export

        export(Path(options.model), {**state["model"], **state.get("buffers", {})}, folder, options.task)

    def setup(self, ctx: RankContext) -> None:
        self.engine = self.make(ctx)

    @operator(batch=Split())
    def train(self, batch: Batch) -> None:
        """Make an update from the loss over the rows of all ranks, for each mini-batch in each epoch. A rank may have
        no rows.

        The loss and its metrics are means over all ranks. The int columns `weight_versions` (ragged, one for each
        completion token; -1: not sampled) or `weight_version` ((rows,)) say which weights sampled. `staleness` is the
        mean number of versions since then, over tokens or rows; `lag_0`, `lag_1`, … are the shares with that number;
        `max_staleness` drops older rows. The option `too_long` decides about rows that are too long for the model, here
        and in the operators below.
        """
        self.engine.train(batch)

    @operator(batch=Split(), returns=Split())
    def logprobs(self, batch: Batch) -> Batch:
        """Add `ref_logprobs` (ragged float32): each completion token's log-probability under the present weights.

        The temperature is the option `logprobs.temperature`; if that is not set, it is the loss's, if it has one. Rows
        that `too_long` drops are not returned.

        Needs the ragged int columns `prompt_ids` and `completion_ids`.
        """
        return self.engine.logprobs(batch)

    @operator(batch=Split(), returns=Split())
    def values(self, batch: Batch) -> Batch:
        """Add `values` (ragged float32): the result of a critic (``task: value``) for the text before each completion
        token.

        Rows that `too_long` drops are not returned.

        Needs the ragged int columns `prompt_ids` and `completion_ids`.
        """
        return self.engine.values(batch)

    @operator(batch=Split(), returns=Split())
    def scores(self, batch: Batch) -> Batch:
        """Add `scores` (float32, (rows, labels)): the result of a classifier (``task: classification``) for each row.

        Rows that `too_long` drops are not returned.

        Needs the ragged int column `input_ids`; padded if there is an `attention_mask`.
        """
        return self.engine.scores(batch)

    @operator(returns=Sharded())
    def weights(self) -> Shards:
        """Return every parameter under its name in the model, tied ones under each of their names, as CPU tensors.

        With `lora` return the adapters, as `q_proj.lora_A.weight` and `q_proj.lora_B.weight`, and ``__lora_scaling__``,
        a float32 array of shape (1,) that rank 0 holds: the layer's weight is the model's + scaling · B A.

        In float32 on CPUs the blocks are views of the live parameters: read them before the next `train`.
        ``__version__`` is an int64 array of shape (1,) that rank 0 holds.
        """
        return self.engine.weights()

    def offload(self) -> None:
        """Move parameters and moments to host memory."""
        self.engine.offload()

    def onload(self) -> None:
        """Move parameters and moments back to the device."""
        self.engine.onload()

    def snapshot(self) -> State | None:
        """Return the rank's blocks of parameters and moments (views on CPUs) as shards, counters, and torch's RNG
        state.

        ``model`` has the parameters by their names in the model, tied ones once.
        """
        return self.engine.snapshot()

    def restore(self, state: State) -> None:
        self.engine.restore(state)

    def verdict(self) -> str:
        """Return a reason if updates were made and none changed a weight, unless the option `if_nothing_learned` allows
        that."""
        return self.engine.verdict()

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
