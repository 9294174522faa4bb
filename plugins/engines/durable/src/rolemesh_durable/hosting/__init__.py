"""Hosting of master and agents: on Ray, or on this machine without it."""
