"""Plugins: find installed ones (discovery), import them (drivers), select them for a job (select),
call their hooks (manager)."""
