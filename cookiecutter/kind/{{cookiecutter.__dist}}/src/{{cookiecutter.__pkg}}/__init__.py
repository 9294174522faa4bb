"""The kind `{{ cookiecutter.__key }}` of rolemesh's plugins: graders, and one of them."""

from {{ cookiecutter.__pkg }}.brevity import Brevity
from {{ cookiecutter.__pkg }}.kind import KIND, Grader

__all__ = ["KIND", "Brevity", "Grader"]
