"""The {{ cookiecutter._kind }} `{{ cookiecutter.name }}` of rolemesh."""

from {{ cookiecutter.__pkg }}.{{ cookiecutter._kind }} import {{ cookiecutter.__class }}

__all__ = ["{{ cookiecutter.__class }}"]
