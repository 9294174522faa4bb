"""Hang detection: it names the rank that all others wait for, takes its stacks, and reports a failure."""
