"""``rolemesh launch``: a training script as it is, run by rolemesh."""
