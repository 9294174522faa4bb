"""The observer of rolemesh that shows a job on a terminal."""
