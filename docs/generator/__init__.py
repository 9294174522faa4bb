"""The generator of the documentation site from ``docs/``: parts generated from the code, pictures, hooks of mkdocs.

``python -m docs.generator`` renews the generated parts; tests compare them with the code.
"""
