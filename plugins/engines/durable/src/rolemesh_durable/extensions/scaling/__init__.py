"""Scaling: plugins of the kind `scalers` choose how many ranks roles should have, by the load of the job."""
