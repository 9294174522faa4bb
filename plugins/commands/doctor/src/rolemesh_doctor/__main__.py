"""``python -m rolemesh_doctor``: the same as `rolemesh doctor`, where that cannot be started."""

from __future__ import annotations

import typer

from rolemesh_doctor.command import doctor

if __name__ == "__main__":
    typer.run(doctor)
