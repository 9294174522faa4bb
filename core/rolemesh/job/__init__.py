"""A job before it runs: read or built, checked, traced, and fitted to a cluster."""
