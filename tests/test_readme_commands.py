"""The commands of the README and of the first documents work as they are copied from there."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors.numpy
from tests import readme_commands as readme

TEXT = """
```
rolemesh validate job.yaml      # a remark
rolemesh run job.yaml 'a=[1]' \\
    b=2
```

```
step 1/2
rolemesh is not a command here
```

| scenario | command |
| --- | --- |
| One | `rolemesh run examples/one/job.yaml` |

"""


def test_commands_are_found_in_blocks_and_in_the_table_without_remarks() -> None:
    assert [(each.text, each.line) for each in readme.commands(TEXT)] == [
        ("rolemesh validate job.yaml", 3),
        ("rolemesh run job.yaml 'a=[1]' b=2", 4),
        ("rolemesh run examples/one/job.yaml", 15),
    ]


def test_each_exception_is_about_a_command_of_the_documents() -> None:
    texts = [each.text for each in readme.documented()]
    assert len(texts) > 20
    assert len(set(texts)) == len(texts)
    for part in (*readme.SHORTER, *readme.ELSEWHERE, *readme.FIRST, *readme.NEEDS, *readme.BESIDE):
        assert any(part in text for text in texts), f"no document has a command with {part!r} any more"


def test_the_quick_commands_about_the_readmes_own_job_succeed(tmp_path: Path) -> None:
    checkout, job = readme.prepared(tmp_path)
    (checkout / ".cache/SmolLM2-135M-Instruct").mkdir(parents=True)
    for name in ("config.json", "tokenizer_config.json", "tokenizer.json"):
        (checkout / ".cache/SmolLM2-135M-Instruct" / name).write_text("{}")
    (checkout / ".cache/SmolLM2-135M-Instruct/model.safetensors").write_bytes(safetensors.numpy.save({}))
    quick = [each for each in readme.documented() if "plan " in each.text]
    assert quick
    for command in quick:
        code, said = readme.run(command, checkout, job)
        assert code == 0, f"{command}\n{said}"


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_command_of_the_first_documents_succeeds() -> None:
    assert readme.main([]) == 0
