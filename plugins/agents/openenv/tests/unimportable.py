"""A module that imports one which is not there, as those do that run in a folder of their own."""

import no_such_models  # type: ignore[import-not-found]  # noqa: F401
