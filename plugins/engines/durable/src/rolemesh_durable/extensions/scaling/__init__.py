"""Scaling: plugins of the kind `scalers` say how many ranks roles should have, by the load of the job."""
