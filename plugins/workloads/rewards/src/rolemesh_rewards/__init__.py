"""Questions from files, rewards from Python functions, and advantages within groups."""
