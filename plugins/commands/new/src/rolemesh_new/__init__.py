"""``rolemesh new``: makes a repository for a plugin of one's own from the templates in ``cookiecutter/``."""
