"""``python -m documents``: write the generated parts anew."""

from __future__ import annotations

import sys

from documents.parts import ROOT, parts

changed = [path for path, text in parts().items() if not path.exists() or path.read_text() != text]
for path in changed:
    path.write_text(parts()[path])
    print(f"renewed {path.relative_to(ROOT)}")
sys.exit(0)
