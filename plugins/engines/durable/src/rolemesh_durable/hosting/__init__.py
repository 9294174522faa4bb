"""Where master and agents live: on Ray, or on this machine without it."""
