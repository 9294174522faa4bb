"""Calls between roles: an operator of one role calls a service of another."""
