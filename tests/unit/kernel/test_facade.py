"""``import rolemesh``: what it offers, and what it does not drag in."""

import subprocess
import sys

import rolemesh


def test_every_name_is_there_and_the_list_is_sorted() -> None:
    assert rolemesh.__all__ == sorted(rolemesh.__all__)
    for name in rolemesh.__all__:
        assert getattr(rolemesh, name) is not None
    assert set(rolemesh.__all__) <= set(dir(rolemesh))


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(rolemesh, "no_such_name")


def test_importing_it_imports_nothing_else_and_using_it_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules); import rolemesh\n"
        "print(sorted(m for m in set(sys.modules) - before if m.split('.')[0] != 'importlib'))\n"
        "loading = {'CheckedJob', 'Job'}  # they load plugins\n"
        "[getattr(rolemesh, name) for name in rolemesh.__all__ if name not in loading]\n"
        "print(sorted({'ray', 'torch', 'vllm', 'transformers', 'sqlalchemy', 'stevedore'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert {name.split(".")[0] for name in eval(first)} <= {*sys.stdlib_module_names, "rolemesh"}
    assert second == "[]"
