"""Make the student: every third layer of SmolLM2-135M-Instruct, in .cache/.

Runs examples/grpo/prepare.py first if the teacher does not exist. Prints the student's folder.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEEP = 3
"""Distance of the layers that the student keeps. DistilBERT kept every second one (Sanh et al., arXiv:1910.01108)."""


def main() -> None:
    subprocess.run([sys.executable, str(ROOT / "examples/grpo/prepare.py")], check=True)
    from transformers import AutoModelForCausalLM

    teacher = ROOT / ".cache/SmolLM2-135M-Instruct"
    student = ROOT / ".cache/SmolLM2-student"
    model = AutoModelForCausalLM.from_pretrained(teacher)
    model.model.layers = model.model.layers[::KEEP]
    model.config.num_hidden_layers = len(model.model.layers)
    if getattr(model.config, "layer_types", None):
        model.config.layer_types = model.config.layer_types[::KEEP]
    model.save_pretrained(student)
    for file in teacher.glob("*token*.json"):
        shutil.copy(file, student)
    print(student)


if __name__ == "__main__":
    main()
