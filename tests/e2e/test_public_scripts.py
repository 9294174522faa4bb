"""Training scripts of the public, unchanged, where there are checkouts of them: see `tests.public_scripts`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.public_scripts import SCRIPTS, Public, compare

FOLDER = os.environ.get("ROLEMESH_PUBLIC_SCRIPTS", "")


@pytest.mark.soak
@pytest.mark.skipif(not FOLDER, reason="ROLEMESH_PUBLIC_SCRIPTS names no folder with checkouts of public repositories")
@pytest.mark.parametrize("public", SCRIPTS, ids=lambda public: public.script)
def test_a_script_that_is_killed_ends_as_under_torchrun(public: Public) -> None:
    if not public.script.startswith("-m ") and not Path(FOLDER, public.script).is_file():
        pytest.skip(f"{public.script} is not in {FOLDER}")
    wrong, calm, killed = compare(public, Path(FOLDER).resolve())
    assert not wrong, "\n".join((*wrong, calm.said[-3000:], killed.said[-3000:]))
