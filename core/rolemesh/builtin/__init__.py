"""The kernel's own plugins, declared as entry points in its pyproject and found like everybody
else's."""
