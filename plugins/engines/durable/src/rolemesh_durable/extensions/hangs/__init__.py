"""Hang detection: it names the rank that everything waits for, asks for its stacks, and reports a failure."""
