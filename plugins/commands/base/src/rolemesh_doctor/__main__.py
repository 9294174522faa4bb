"""``python -m rolemesh_doctor``: `rolemesh doctor` on a machine on which that command cannot start."""

from __future__ import annotations

import typer

from rolemesh_doctor.command import doctor

if __name__ == "__main__":
    typer.run(doctor)
