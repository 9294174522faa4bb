"""What the driver refuses before anything starts, without importing vllm."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolemesh.api.workload import RankContext
from rolemesh.errors import OptionsError, Problems
from rolemesh_vllm import VLLMDecode, VLLMOptions, VLLMPrefill, VLLMWorkload
from rolemesh_vllm.engine_args import default_engine_args


def check(model: Path, **engine: Any) -> None:
    VLLMWorkload.check(VLLMOptions(model=str(model), max_tokens=8, engine=engine), world_size=1)


def test_checking_options_imports_neither_vllm_nor_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code = (
        "import sys; from rolemesh_vllm import VLLMWorkload as W\n"
        f"W.check(W.Options(model={str(tmp_path)!r}, engine={{'max_num_seqs': 8}}), 1); W.operators(None)\n"
        "print([m for m in ('vllm', 'torch', 'ray', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_relative_model_folder_is_looked_for_beside_the_job_file(tmp_path: Path) -> None:
    options = VLLMOptions.model_validate({"model": "models/m"}, context={"base": str(tmp_path)})
    assert options.model == str(tmp_path / "models" / "m")


def test_a_missing_model_folder_is_named_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"nothing-here does not exist[\s\S]*relative to the job file"):
        check(tmp_path / "nothing-here")


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"has no config.json"):
        check(tmp_path)


def test_a_misspelled_engine_argument_gets_the_nearest_known_one(tiny_model: Path) -> None:
    with pytest.raises(OptionsError, match=r"engine.max_model_length[\s\S]*did you mean 'max_model_len'\?"):
        check(tiny_model, max_model_length=64)


def test_engine_arguments_that_the_workload_sets_are_refused(tiny_model: Path) -> None:
    with pytest.raises(OptionsError, match=r"engine.seed: the workload sets this .* from the job's seed"):
        check(tiny_model, seed=3)


@pytest.mark.parametrize(
    ("name", "remedy"), [("pipeline_parallel_size", "use tensor_parallel_size"), ("data_parallel_size", "world_size")]
)
def test_an_engine_is_spread_by_tensor_parallelism_only(tiny_model: Path, name: str, remedy: str) -> None:
    check(tiny_model, tensor_parallel_size=2)
    with pytest.raises(OptionsError, match=rf"engine.{name}: this workload's engine cannot be spread[\s\S]*{remedy}"):
        check(tiny_model, **{name: 2})


@pytest.mark.parametrize("half", [VLLMPrefill, VLLMDecode])
def test_the_halves_cannot_be_spread(half: type[VLLMPrefill], tiny_model: Path) -> None:
    options = half.Options(model=str(tiny_model), engine={"tensor_parallel_size": 2})
    with pytest.raises(OptionsError, match=r"engine.tensor_parallel_size[\s\S]*larger world_size; the workload `vllm`"):
        half.check(options, world_size=1)


def test_parts_that_do_not_divide_the_attention_heads_are_refused(tiny_model: Path) -> None:
    with pytest.raises(OptionsError, match=r"2 attention heads cannot be shared out by .* 3[\s\S]*take one of 1, 2"):
        check(tiny_model, tensor_parallel_size=3)


@pytest.mark.parametrize("parts", [0, -1, "2", 1.0, True])
def test_parts_are_a_whole_number(tiny_model: Path, parts: object) -> None:
    with pytest.raises(OptionsError, match="give a whole number from 1"):
        check(tiny_model, tensor_parallel_size=parts)


def test_a_rank_with_fewer_gpus_than_parts_says_how_many_to_ask_for(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolemesh_vllm.workload.is_cpu_build", lambda: False)
    options = VLLMOptions(model=str(tiny_model), engine={"tensor_parallel_size": 2})
    with pytest.raises(
        OptionsError, match=r"needs as many GPUs, and the rank has 1[\s\S]*roles.gen.resources.gpu to 2"
    ):
        VLLMWorkload().setup(RankContext(options=options, role="gen", gpus=[0]))


@pytest.mark.parametrize("name", ["distributed_executor_backend", "worker_cls"])
def test_where_the_parts_live_is_the_workloads_business(tiny_model: Path, name: str) -> None:
    with pytest.raises(OptionsError, match=rf"engine.{name}: the workload sets this .*engine.tensor_parallel_size"):
        check(tiny_model, **{name: "mp"})


def test_a_context_without_room_for_prompts_is_refused(tiny_model: Path) -> None:
    with pytest.raises(OptionsError, match=r"max_model_len 8 leaves no room"):
        check(tiny_model, max_model_len=8)


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(Problems) as caught:
        check(tmp_path, dtype="float32", max_num_seq=1)
    assert len(caught.value.errors) == 3


@pytest.mark.parametrize(
    "wrong", [{"sample": 4}, {"samples": 0}, {"top_p": 0.0}, {"temperature": -1.0}, {"dtype": "int8"}]
)
def test_unknown_keys_and_values_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        VLLMOptions(model="m", **wrong)


def test_on_gpus_the_engine_takes_the_ranks_share_of_the_memory_or_sleeps_between_turns(tiny_model: Path) -> None:
    assert default_engine_args(tiny_model, cpu=False, share=0.5)["gpu_memory_utilization"] == 0.45
    assert default_engine_args(tiny_model, cpu=False, share=0.5, turns=True)["enable_sleep_mode"] is True
    assert default_engine_args(tiny_model, cpu=False).keys() == {"logprobs_mode", "enable_prefix_caching"}
    assert "enable_sleep_mode" not in default_engine_args(tiny_model, cpu=True, turns=True)


@pytest.mark.parametrize("half", [VLLMPrefill, VLLMDecode])
def test_without_nixl_the_halves_say_what_to_install(
    half: type[VLLMPrefill], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolemesh_vllm.pd.importlib.util.find_spec", lambda name: None)
    with pytest.raises(OptionsError, match=r"nixl, which is not installed[\s\S]*pip install 'rolemesh-vllm\[pd\]'"):
        half.check(half.Options(model=str(tiny_model)), world_size=1)


@pytest.mark.parametrize("half", [VLLMPrefill, VLLMDecode])
def test_the_halves_make_their_own_transfer_config(half: type[VLLMPrefill], tiny_model: Path) -> None:
    options = half.Options(model=str(tiny_model), engine={"kv_transfer_config": {}})
    with pytest.raises(OptionsError, match=r"engine.kv_transfer_config: the workload sets this .* half of the work"):
        half.check(options, world_size=1)
