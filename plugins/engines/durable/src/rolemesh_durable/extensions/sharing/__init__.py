"""Rows by demand: each rank of a role makes the items of a call that it has time for."""
