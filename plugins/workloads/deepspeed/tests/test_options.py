"""What the driver refuses before anything starts, and that it needs neither torch nor DeepSpeed to do so."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from pydantic import ValidationError

from rolemesh_deepspeed import DeepSpeedOptions
from rolemesh_deepspeed.config import ZERO


def test_importing_the_package_and_checking_options_leaves_torch_out(tiny_model):
    code = (
        "import sys; from rolemesh_deepspeed import DeepSpeedOptions, DeepSpeedWorkload\n"
        f"DeepSpeedWorkload.check(DeepSpeedOptions(model={str(tiny_model)!r}), 2)\n"
        "sys.exit(','.join(m for m in ('torch', 'transformers', 'deepspeed') if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_a_config_of_a_file_is_read_beside_the_job(tmp_path):
    given = {
        "train_batch_size": "auto",
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
        "bf16": {"enabled": True},
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.8, 0.9], "weight_decay": "auto"}},
    }
    (tmp_path / "ds.json").write_text(json.dumps(given))
    options = DeepSpeedOptions.model_validate({"model": "m", "config": "ds.json"}, context={"base": str(tmp_path)})
    assert (options.stage, options.dtype, options.clip_norm) == (3, "bfloat16", 0.5)
    assert (options.optimizer, options.lr, options.betas, options.weight_decay) == ("adamw", 3e-4, (0.8, 0.9), 0.0)
    again = DeepSpeedOptions.model_validate(options.model_dump(mode="json"), context={"base": "/elsewhere"})
    assert again == options


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimisation": {}}, "did you mean 'zero_optimization'"),
        ({"zero_optimization": {"stage": 0}}, "without ZeRO use the workload ddp"),
        ({"zero_optimization": {"stagee": 2}}, "did you mean 'stage'"),
        ({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}, "a snapshot would not reach"),
        ({"train_batch_size": 8}, "rows come from the flow"),
        ({"optimizer": {"type": "OneBitAdam"}}, "it is one of Adam, AdamW and SGD"),
        ({"optimizer": {"type": "Adam", "params": {"freeze_step": 2}}}, "optimizer.params.freeze_step is not"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "cannot both be enabled"),
        ({"gradient_clipping": 2.0}, "clip_norm is 1.5 as an option and 2.0 in config"),
        ("nowhere.json", "nowhere.json cannot be read"),
    ],
    ids=str,
)
def test_what_cannot_be_had_is_refused_with_the_reason(config, message):
    with pytest.raises(ValidationError, match=message):
        DeepSpeedOptions.model_validate({"model": "m", "clip_norm": 1.5, "config": config})


def test_what_is_handed_on_is_what_deepspeed_knows():
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    known = {field.alias or name for name, field in DeepSpeedZeroConfig.model_fields.items()}
    assert not ZERO - known
