"""The `fsdp` workload as the kernel sees it; the torch code behind it is imported in `setup`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel

from rolemesh.api.batch import Batch, Shards
from rolemesh.api.partition import Sharded, Split
from rolemesh.api.workload import RankContext, State, Workload, operator
from rolemesh.errors import OptionsError
from rolemesh_fsdp.options import FSDPOptions

if TYPE_CHECKING:
    from rolemesh_fsdp.engine import Engine

__all__ = ["FSDPWorkload"]


class FSDPWorkload(Workload):
    """Trains a Hugging Face causal language model with FSDP2 over `world_size` ranks (gloo on CPUs, NCCL on GPUs).

    `version` counts the finished `train` calls: 0 is the initial weights. It is the entry ``__version__`` of
    `weights`, and part of the snapshot.
    """

    Options: ClassVar[type[BaseModel]] = FSDPOptions
    group: ClassVar[Literal["independent", "collective"]] = "collective"
    deterministic: ClassVar[bool] = True
    preload: ClassVar[Sequence[str]] = (
        "rolemesh_fsdp.engine",
        "rolemesh_fsdp.losses",
        "transformers.models.auto.modeling_auto",
        "transformers.models.llama.modeling_llama",
    )
    env: ClassVar[Mapping[str, str]] = {
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }

    engine: Engine

    @classmethod
    def check(cls, options: Any, world_size: int) -> None:
        """The model folder must hold what `init` needs."""
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
        if options.init == "pretrained" and not any(folder.glob("*.safetensors")):
            raise OptionsError(
                f"the model folder {folder} has no *.safetensors file",
                remedy="put the weights there, or set options.init to random for new weights from its config.json",
            )

    @classmethod
    def export(cls, options: Any, state: State, folder: Path) -> None:
        """A Hugging Face folder: all files of `options.model` but its weights, and the parameters in float32."""
        from rolemesh_fsdp.export import export

        export(Path(options.model), state["model"], folder)

    def setup(self, ctx: RankContext[FSDPOptions]) -> None:
        from rolemesh_fsdp.engine import Engine

        self.engine = Engine(ctx)

    @operator(batch=Split())
    def train(self, batch: Batch) -> None:
        """One AdamW update from the loss over the rows of all ranks; a rank may have none.

        The loss and its metrics are means over all ranks. Rows with an int column `weight_version` report
        `staleness`, the mean number of updates since the weights that produced them.
        """
        self.engine.train(batch)

    @operator(batch=Split(), returns=Split())
    def logprobs(self, batch: Batch) -> Batch:
        """Add `ref_logprobs` (ragged float32): each completion token's log-probability under the present weights.

        At the temperature `logprobs.temperature` of the options, which is the loss's if it has one and none is given.

        Needs the ragged int columns `prompt_ids` and `completion_ids`.
        """
        return self.engine.logprobs(batch)

    @operator(returns=Sharded())
    def weights(self) -> Shards:
        """Every parameter under its Hugging Face name, tied ones under each of their names, as CPU tensors.

        In float32 on CPUs the blocks are views of the live parameters: read them before the next `train`.
        ``__version__`` is an int64 array of shape (1,), held by rank 0.
        """
        return self.engine.weights()

    def offload(self) -> None:
        """Parameters and moments go to host memory."""
        self.engine.offload()

    def onload(self) -> None:
        """Parameters and moments come back to the device."""
        self.engine.onload()

    def snapshot(self) -> State:
        """The rank's blocks of parameters and moments (views on CPUs) as shards, counters and torch's RNG state.

        ``model`` has the parameters by their Hugging Face names, tied ones once.
        """
        return self.engine.snapshot()

    def restore(self, state: State) -> None:
        self.engine.restore(state)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            self.engine.close()
