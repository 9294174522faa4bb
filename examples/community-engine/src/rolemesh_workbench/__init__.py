"""An engine, a backend and a verb for rolemesh."""
