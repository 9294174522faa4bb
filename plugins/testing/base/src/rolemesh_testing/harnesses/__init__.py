"""The conformance kit for harnesses."""
