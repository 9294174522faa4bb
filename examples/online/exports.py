"""A folder with a model for serving: a base, deltas, and a manifest that lists the files of one model.

The writer writes files beside and renames them. Their names contain a hash of their content, so none ever changes. It
renames the manifest last. A reader therefore sees a whole model of one step, or of the step before.
"""

import hashlib
import json
import os
import re
from pathlib import Path

import numpy as np
from model import DIM, Model
from safetensors.numpy import load, save

MANIFEST = "manifest.json"
NAME = re.compile(r"(base|delta)-(\d+)-[0-9a-f]{16}\.safetensors")


def write_part(folder, kind, step, arrays):
    """Write the arrays of a step, and return the file's name."""
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    name = f"{kind}-{step:012}-{hashlib.sha256(data).hexdigest()[:16]}.safetensors"
    if not (folder / name).exists():
        _write(folder / name, data)
    return name


def write_manifest(folder, step, names, **more):
    """Publish the model that consists of these files."""
    _write(folder / MANIFEST, json.dumps({"step": step, "files": names, **more}).encode())


def _write(path, data):
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with beside.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    beside.rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def clean(folder, before):
    """Remove files of steps before that one, and leftovers of a killed writer."""
    for path in folder.iterdir():
        part = NAME.fullmatch(path.name)
        left = path.name.startswith(".") and not path.name.endswith(f".{os.getpid()}")
        if left or (part and int(part[2]) < before):
            path.unlink(missing_ok=True)


class Served:
    """A model that only predicts and never changes: of step `step`, from files `names`.

    `newest` is the time at which its newest event was sent.
    """

    def __init__(self, step=-1, names=(), newest=0.0):
        self.step, self.names, self.newest = step, tuple(names), newest
        self._model = Model()

    def predict(self, keys):
        """See `Model.predict`."""
        return self._model.predict(keys)

    @classmethod
    def read(cls, folder, before=None):
        """Return the model of the manifest, made from the model `before` if that is a part of it.

        Raises `FileNotFoundError` while there is none, and if a file was removed meanwhile: read again.
        """
        manifest = json.loads((Path(folder) / MANIFEST).read_bytes())
        made, names = cls(manifest["step"], manifest["files"], manifest["newest"]), manifest["files"]
        if before is not None and tuple(names[: len(before.names)]) == before.names:
            names = names[len(before.names) :]
            made._model.load_state(before._model.state())
        for name in names:
            data = (Path(folder) / name).read_bytes()
            if hashlib.sha256(data).hexdigest()[:16] not in name:
                raise ValueError(f"{folder}/{name} is damaged: its content is not what its name says")
            part = load(data)
            rows = made._model.find(part["keys"], grow=True)
            made._model.table[rows, : 1 + DIM] = part["table"]
            made._model.dense = np.stack([part["dense"], np.zeros_like(part["dense"])])
        return made
