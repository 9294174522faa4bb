"""The scaler: as many ranks as keep each of them busy for a given share of the time."""

from math import ceil

from pydantic import Field
from rolemesh_durable.scalers import Load, Scaler, ScalerOptions, Wanted

__all__ = ["{{ cookiecutter.__class }}"]


class {{ cookiecutter.__class }}(Scaler):
    """Gives a role as many ranks as are busy for the share `busy` of the time, if its work is shared out evenly.

    It leaves a role alone whose number of ranks would change by less than the share `slack`.
    """

    class Options(ScalerOptions):
        """Options in the job file, with those of every scaler."""

        busy: float = Field(default=0.7, gt=0, le=1, description="Share of the time that ranks are to compute.")
        slack: float = Field(default=0.2, ge=0, description="A smaller change, as a share of the ranks, is none.")

    options: Options

    def decide(self, load: Load) -> Wanted | None:
        """The sizes that roles should have; None if all are as they should be."""
        sizes, reasons = {}, []
        for role in load.roles:
            needed = ceil(role.ranks * role.busy / self.options.busy - 1e-9)
            size = max(role.least, min(needed, role.most, role.room))
            if abs(size - role.ranks) > self.options.slack * role.ranks:
                sizes[role.role] = size
                reasons.append(f"{role.role} needs {size} ranks: {role.ranks} computed for {role.busy:.0%} of the time")
        return Wanted(sizes, "; ".join(reasons)) if sizes else None
