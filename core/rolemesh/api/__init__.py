"""The contracts of all kinds of plugins except engines, and the values that travel on edges."""
