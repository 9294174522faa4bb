"""The conformance kit for environments."""
