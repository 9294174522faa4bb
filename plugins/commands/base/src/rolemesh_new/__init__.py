"""``rolemesh new``: create a repository for a plugin from the templates in ``cookiecutter/``."""
