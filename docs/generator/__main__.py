"""``python -m docs.generator``: write the generated parts again."""

from __future__ import annotations

from docs.generator.parts import PARTS, ROOT

for path, made in PARTS.items():
    text = made()
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        print(f"renewed {path.relative_to(ROOT)}")
