"""The contracts of all kinds of plugins but engines, and the values on edges."""
