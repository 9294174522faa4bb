"""Plugins: what is installed (discovery), importing it (drivers), choosing for a job (select), its
hooks (manager)."""
