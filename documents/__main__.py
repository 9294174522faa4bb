"""``python -m documents``: write the generated parts anew."""

from __future__ import annotations

from documents.parts import ROOT, parts

for path, text in parts().items():
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
        print(f"renewed {path.relative_to(ROOT)}")
