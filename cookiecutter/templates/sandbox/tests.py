"""A command runs, and a sandbox that cannot work says what to do."""

from pathlib import Path

import pytest
from rolemesh_agents import AgentError, Limits
from rolemesh_testing import SandboxConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(SandboxConformance):
    """The tests that every sandbox must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ({"unshare": 1},)


def sandbox(**options: object) -> {{ cookiecutter.__class }}:
    return {{ cookiecutter.__class }}({{ cookiecutter.__class }}.Options(**options))


def test_a_command_is_alone_among_processes(tmp_path: Path) -> None:
    made = sandbox()
    try:
        made.open(tmp_path, Limits())
    except AgentError as error:
        pytest.skip(str(error))
    numbers = [int(each) for each in made.run("ls /proc").output.split() if each.isdigit()]
    made.close()
    assert max(numbers) < 10


def test_a_missing_program_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="no-such-program") as raised:
        sandbox(unshare="no-such-program").open(tmp_path, Limits())
    assert raised.value.remedy
