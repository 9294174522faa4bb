"""Options that the driver refuses before the start, without an import of vllm."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolemesh.api.workload import RankContext
from rolemesh.errors import OptionsError, Problems, RolemeshError
from rolemesh_vllm import VLLMDecode, VLLMOptions, VLLMPrefill, VLLMWorkload
from rolemesh_vllm.engine_args import default_engine_args, other_rotation
from rolemesh_vllm.pd import check_halves
from rolemesh_vllm.rows import Room, fitted


def check(model: Path, **engine: Any) -> None:
    VLLMWorkload.check(VLLMOptions(model=str(model), max_tokens=8, engine=engine), world_size=1)


def test_checking_options_imports_neither_vllm_nor_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    code = (
        "import sys; from rolemesh_vllm import VLLMWorkload as W\n"
        f"W.check(W.Options(model={str(tmp_path)!r}, engine={{'max_num_seqs': 8}}), 1); W.operators(None)\n"
        "print([m for m in ('vllm', 'torch', 'ray', 'transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
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
    with pytest.raises(RolemeshError, match=r"engine.tensor_parallel_size[\s\S]*larger world_size; the w"):
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
        VLLMWorkload(options).setup(RankContext(role="gen", gpus=[0]))


@pytest.mark.parametrize("chosen", [False, True])
def test_on_a_gpu_the_role_varies_unless_it_takes_batch_invariant_kernels(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, chosen: bool
) -> None:
    monkeypatch.setattr("rolemesh_vllm.workload.is_cpu_build", lambda: False)
    monkeypatch.setattr(VLLMWorkload, "deterministic", False)
    options = VLLMOptions(model=str(tiny_model), batch_invariant=chosen)
    assert VLLMWorkload.varies(options) is not chosen
    assert VLLMWorkload.process(options)[1].get("VLLM_BATCH_INVARIANT") == ("1" if chosen else None)
    assert VLLMWorkload.varies(options.model_copy(update={"update": "between_turns"}))


def test_on_a_gpu_nothing_undoes_batch_invariant(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"model": str(tiny_model), "max_tokens": 8, "engine": {"max_model_len": 128, "enable_prefix_caching": True}}
    VLLMWorkload.check(VLLMOptions(**given, batch_invariant=True), 1)
    monkeypatch.setattr("rolemesh_vllm.workload.is_cpu_build", lambda: False)
    VLLMWorkload.check(VLLMOptions(**given), 1)
    with pytest.raises(OptionsError, match=r"engine.enable_prefix_caching: [\s\S]*set batch_invariant to false"):
        VLLMWorkload.check(VLLMOptions(**given, batch_invariant=True), 1)


@pytest.mark.parametrize("name", ["distributed_executor_backend", "worker_cls"])
def test_the_place_of_the_parts_is_an_option_of_the_workload(tiny_model: Path, name: str) -> None:
    with pytest.raises(OptionsError, match=rf"engine.{name}: the workload sets this .*engine.tensor_parallel_size"):
        check(tiny_model, **{name: "mp"})


def test_the_way_of_new_weights_is_the_operator_that_takes_them(tiny_model: Path) -> None:
    with pytest.raises(OptionsError, match="the workload sets this engine argument itself, from the operator `load_we"):
        check(tiny_model, weight_transfer_config={"backend": "nccl"})


def test_a_context_without_room_for_prompts_is_refused(tiny_model: Path) -> None:
    with pytest.raises(OptionsError, match=r"max_model_len 8 leaves no room"):
        check(tiny_model, max_model_len=8)


def test_a_generation_config_does_not_say_how_to_sample(tiny_model: Path) -> None:
    check(tiny_model, override_generation_config={"eos_token_id": 3})
    with pytest.raises(OptionsError, match=r"override_generation_config.top_k: top_k has no effect[\s\S]*option top_k"):
        check(tiny_model, override_generation_config={"eos_token_id": 3, "top_k": 5})


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [("chat_template", True, False), ("dtype", "float32", "bfloat16"), ("batch_invariant", True, False)],
)
def test_halves_that_differ_are_refused_with_both_values(tiny_model: Path, name: str, one: Any, other: Any) -> None:
    decode = VLLMDecode.Options(model=str(tiny_model), max_tokens=8, **{name: one})
    assert check_halves(decode, "prefill", VLLMPrefill.Options(model=str(tiny_model), **{name: one})) == []
    [error] = check_halves(decode, "prefill", VLLMPrefill.Options(model=str(tiny_model), **{name: other}))
    assert error.what.startswith(f"{name} is {one}, and {other} in prefill")


def positions(folder: Path, **config: Any) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "engine", "message"),
    [
        ({}, {}, r"max_model_len 2048 leaves no room for a prompt before max_tokens 4096"),
        ({"max_position_embeddings": 8192}, {"max_model_len": 4096}, "leaves no room"),
        ({"n_positions": 1024}, {}, r"max_model_len 1024 leaves no room"),
        ({"text_config": {"max_position_embeddings": 512}}, {}, r"max_model_len 512 leaves no room"),
        ({"max_position_embeddings": 8192}, {"max_model_len": 9000}, r"9000 is more than the 8192 positions"),
        ({}, {"max_model_len": "4k"}, r"max_model_len is '4k'"),
        ({}, {"max_model_len": 0}, r"max_model_len is 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_the_start(
    tmp_path: Path, config: dict[str, Any], engine: dict[str, Any], message: str
) -> None:
    options = VLLMOptions(model=str(positions(tmp_path, **config)), max_tokens=4096, engine=engine)
    with pytest.raises(OptionsError, match=message):
        VLLMWorkload.check(options, world_size=1)


def test_positions_that_are_stretched_are_left_to_the_engine(tmp_path: Path) -> None:
    scaled = positions(tmp_path, max_position_embeddings=64, rope_scaling={"rope_type": "yarn", "factor": 4.0})
    VLLMWorkload.check(VLLMOptions(model=str(scaled), max_tokens=8, engine={"max_model_len": 200}), world_size=1)


@pytest.mark.parametrize("where", ["beside", "within"])
def test_longrope_is_told_where_vllm_and_transformers_differ(tmp_path: Path, where: str) -> None:
    scaling: dict[str, Any] = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [4.0]}
    bound: dict[str, Any] = {"original_max_position_embeddings": 4096}
    config = {"rope_scaling": scaling, **bound} if where == "beside" else {"rope_parameters": scaling | bound}
    model = positions(tmp_path, max_position_embeddings=131072, **config)
    assert other_rotation(model, {}) is None  # vLLM takes 4096
    assert other_rotation(model, {"max_model_len": 4096}) is None
    assert "set it to 4096 or less" in (other_rotation(model, {"max_model_len": 4097}) or "")


@pytest.mark.parametrize(
    ("mode", "more", "fits"),
    [
        ("raw_logprobs", {}, True),
        ("raw_logprobs", {"temperature": 0.7}, False),
        ("raw_logprobs", {"top_p": 0.7}, False),
        ("processed_logits", {}, False),
        ("processed_logprobs", {"top_p": 0.7}, True),
    ],
)
def test_logprobs_are_of_what_was_sampled_from(tiny_model: Path, mode: str, more: dict[str, Any], fits: bool) -> None:
    options = VLLMOptions(model=str(tiny_model), max_tokens=8, engine={"logprobs_mode": mode}, **more)
    if fits:
        VLLMWorkload.check(options, world_size=1)
    else:
        with pytest.raises(OptionsError, match="would not be of the distribution"):
            VLLMWorkload.check(options, world_size=1)


@pytest.mark.parametrize(
    ("lengths", "how", "ids", "dropped", "truncated"),
    [
        ((2, 3), "fail", [[0, 1], [0, 1, 2]], [], []),
        ((2, 5, 0), "drop", [[0, 1], [], []], [1, 2], []),
        ((2, 5, 0), "truncate", [[0, 1], [0, 3, 4], []], [2], [1]),
    ],
)
def test_prompts_are_made_to_fit_as_the_option_says(
    lengths: tuple[int, ...], how: str, ids: list[list[int]], dropped: list[int], truncated: list[int]
) -> None:
    rows = [list(range(length)) for length in lengths]
    assert fitted(rows, Room(8, 5), lambda: how, opening=0) == (ids, dropped, truncated)


@pytest.mark.parametrize("length", [0, 4])
def test_with_fail_the_first_prompt_that_does_not_fit_is_named(length: int) -> None:
    with pytest.raises(RolemeshError, match=rf"prompt 1 has {length} tokens; .* it may have 3\n"):
        fitted([[1], [2] * length], Room(8, 5), lambda: "fail")


def test_options_that_shape_a_distribution_are_reported_and_defaults_are_not() -> None:
    assert VLLMOptions(model="m", top_k=-1, stop=["x"], stop_token_ids=[3]).sampling() == {"temperature": 1.0}
    options = VLLMOptions(model="m", temperature=0.7, min_p=0.1, engine={"logits_processors": ["mine:P"]})
    assert options.sampling() == {"temperature": 0.7, "min_p": 0.1, "logits_processors": ["mine:P"]}
    assert VLLMWorkload.sampling(options, "evaluate") == {"temperature": 0.0, "logits_processors": ["mine:P"]}
    assert VLLMWorkload.sampling(options, "load_weights") is None


def test_completions_cannot_be_longer_than_they_may_be() -> None:
    with pytest.raises(ValidationError, match="min_tokens 9 is more than max_tokens 8"):
        VLLMOptions(model="m", min_tokens=9, max_tokens=8)


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
    invariant = default_engine_args(tiny_model, cpu=False, turns=True, invariant=True)
    assert (invariant["enable_prefix_caching"], invariant["enable_chunked_prefill"]) == (False, False)
    assert invariant["enable_sleep_mode"] is True
    assert default_engine_args(tiny_model, cpu=True, invariant=True)["enable_prefix_caching"] is True


@pytest.mark.parametrize("half", [VLLMPrefill, VLLMDecode])
def test_without_nixl_the_halves_say_what_to_install(
    half: type[VLLMPrefill], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rolemesh_vllm.pd.importlib.util.find_spec", lambda name: None)
    with pytest.raises(RolemeshError, match=r"nixl, which is not installed[\s\S]*pip install 'rolemesh-vllm\[pd\]'"):
        half.check(half.Options(model=str(tiny_model)), world_size=1)


@pytest.mark.parametrize("half", [VLLMPrefill, VLLMDecode])
def test_the_halves_make_their_own_transfer_config(half: type[VLLMPrefill], tiny_model: Path) -> None:
    options = half.Options(model=str(tiny_model), engine={"kv_transfer_config": {}})
    with pytest.raises(RolemeshError, match=r"engine.kv_transfer_config: the workload sets this .* half of the work"):
        half.check(options, world_size=1)


@pytest.mark.parametrize("indexed", [False, True])
def test_only_the_files_that_hold_the_model_are_read(tmp_path: Path, indexed: bool) -> None:
    import torch
    from safetensors.torch import save_file

    from rolemesh_vllm.adapters import merged
    from rolemesh_vllm.checkpoint import checkpoint_shapes

    name = "model-00001-of-00001.safetensors" if indexed else "model.safetensors"
    save_file({"a.weight": torch.ones(2, 3)}, tmp_path / name)
    save_file({"layers.0.wq.weight": torch.zeros(2, 3)}, tmp_path / "consolidated.safetensors")
    if indexed:
        index = json.dumps({"weight_map": {"a.weight": name}})
        (tmp_path / "model.safetensors.index.json").write_text(index)
    assert checkpoint_shapes(tmp_path) == {"a.weight": (2, 3)}
    assert [each for each, _ in merged(tmp_path, {}, 1.0, None)] == ["a.weight"]


@pytest.mark.parametrize("indexed", [False, True])
def test_vllm_reads_the_files_that_the_trainer_reads_or_the_others_are_named(tmp_path: Path, indexed: bool) -> None:
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from rolemesh_vllm.checkpoint import check_weight_files

    names = (
        ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"] if indexed else ["model.safetensors"]
    )
    others = ["adapter_model.safetensors", "consolidated.safetensors"]
    for name in (*names, *others, "pytorch_model.bin"):
        (tmp_path / name).touch()
    if indexed:
        index = json.dumps({"weight_map": dict(enumerate(names))})
        (tmp_path / "model.safetensors.index.json").write_text(index)
    chosen = default_engine_args(tmp_path, cpu=False).get("load_format", "auto")
    loader = DefaultModelLoader(LoadConfig(load_format=chosen))
    _, read, *_ = loader._prepare_weights(str(tmp_path), None, None, True, None)
    errors = check_weight_files(tmp_path, {})
    if indexed:
        assert sorted(Path(path).name for path in read) == names
        assert errors == []
    else:
        assert [Path(path).name for path in read] != names, "vLLM has learnt it: the error can go"
        assert "adapter_model.safetensors, consolidated.safetensors beside model.safetensors" in errors[0].what
        assert check_weight_files(tmp_path, {"load_format": "dummy"}) == []
