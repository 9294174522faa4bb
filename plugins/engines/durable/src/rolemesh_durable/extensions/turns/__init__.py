"""Turns: ranks that share a slot run one after the other, and a collective group begins its calls together."""
