"""Load a Hugging Face model that never fits one rank's memory: create parameters without content, divide them, then
fill them.

Each rank reads its own parts of the files. Content that no file has (all of ``init: random``, a new head, buffers)
comes from the model's own `_init_weights`, one decoder layer at a time, in the order and with the random numbers of
transformers. So the weights equal those of `from_config` and `from_pretrained` bit for bit, for any world size.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_module_registration_hook
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming, rename_source_key

from rolemesh_training.checkpoint import Checkpoint
from rolemesh_training.model import architecture, decoder_layers, finished, load
from rolemesh_training.options import HuggingFaceOptions

__all__ = ["Parts"]

Runs = Callable[[str, torch.Size], Sequence[tuple[int, int]]]
"""Function from a parameter's name and shape to this rank's runs of the flattened parameter: the first element and the
length of each."""
_META = torch.device("meta")
_Unit = list[tuple[torch.nn.Module, PreTrainedModel]]


class Parts:
    """The parameters of `model` are on the device "meta" until the caller has divided them and calls `allocate` and
    `fill`.

    `whole` is true if the model cannot be loaded in parts and already has its content. Then the names or shapes in its
    files differ from those of the model (mixtures of experts whose experts are stored one by one), or the weights are
    quantized.
    """

    def __init__(self, options: HuggingFaceOptions, seed: int, runs: Runs) -> None:
        """`seed` is for content that no file has. It is the same on every rank."""
        self._runs = runs
        self._names: dict[int, str] = {}
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # the parameter, so that its id stays its own
        self.whole = False
        with torch.random.fork_rng(devices=[]), _Apart():
            torch.manual_seed(seed)
            if options.init == "random":
                model, sources = self._random(options), {}
            else:
                self._checkpoint = Checkpoint(Path(options.model))
                with _META:
                    model = architecture(options)
                found = self._sources(model)
                self.whole = found is None
                sources = found or {}
                self._name(model)
                read = {id(_tensor(model, name)) for name in sources}
                for unit in _units(model) if not self.whole else ():
                    self._make(unit, read)
        if self.whole:
            self.model = load(options, seed)
            return
        files = {id(_tensor(model, name)): source for name, source in sources.items()}
        with _weightless(model) if options.lora is not None else nullcontext():
            self.model = finished(model, options, seed)
        tensors = dict(self.model.named_parameters()) | dict(self.model.named_buffers())
        self._shapes = {name: tensor.shape for name, tensor in tensors.items()}
        self._files = {name: files[id(tensor)] for name, tensor in tensors.items() if id(tensor) in files}
        self._pieces = {name: self._made[id(tensor)][1] for name, tensor in tensors.items() if id(tensor) in self._made}
        self._made.clear()

    def _random(self, options: HuggingFaceOptions) -> Any:
        """Create modules as usual, with the random numbers that they consume, but drop their content at once."""

        def drop(_: torch.nn.Module, __: str, child: torch.nn.Module | None) -> None:
            for name, p in child._parameters.items() if child is not None else ():
                if p is not None and p.device != _META:
                    child._parameters[name] = torch.nn.Parameter(p.to(_META), requires_grad=p.requires_grad)

        def initialize(model: PreTrainedModel) -> None:
            drop(model, "", model)
            self._name(model)
            for unit in _units(model):
                self._make(unit, set())

        ours = PreTrainedModel.initialize_weights
        hook = register_module_module_registration_hook(drop)
        PreTrainedModel.initialize_weights = initialize
        try:
            return architecture(options)
        finally:
            PreTrainedModel.initialize_weights = ours
            hook.remove()

    def _name(self, model: torch.nn.Module) -> None:
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def _make(self, unit: _Unit, read: set[int]) -> None:
        """Initialize the tensors of these modules that are not `read`, and keep this rank's runs of them."""
        unit = [(module, owner) for module, owner in unit if not getattr(module, "_is_hf_initialized", False)]
        own = [(m, name, p) for m, _ in unit for name, p in m._parameters.items() if p is not None]
        empty = [(m, name, b) for m, _ in unit for name, b in m._buffers.items() if b is not None and b.device == _META]
        fresh = {id(tensor) for _, _, tensor in (*own, *empty)} - read
        if read and not fresh:
            return
        for module, name, parameter in own:  # what will be read must use up no random numbers
            held = torch.empty(parameter.shape, device="cpu" if id(parameter) in fresh else _META)
            module._parameters[name] = torch.nn.Parameter(held, requires_grad=False)
        for module, name, buffer in empty:
            module._buffers[name] = torch.empty_like(buffer, device="cpu")
            if id(buffer) in read:
                read.add(id(module._buffers[name]))
        for module, owner in unit:
            owner._init_weights(module)
            module._is_hf_initialized = True  # type: ignore[assignment]
        for module, name, parameter in own:
            made = module._parameters[name]
            module._parameters[name] = parameter
            if id(parameter) in fresh:
                assert made is not None
                runs = self._runs(self._names[id(parameter)], parameter.shape)
                held = torch.empty(sum(size for _, size in runs))
                at = 0
                for start, size in runs:
                    held[at : at + size] = made.view(-1)[start : start + size]
                    at += size
                self._made[id(parameter)] = (parameter, held)

    def _sources(self, model: Any) -> dict[str, str] | None:
        """Return each tensor of the model's state, under one of its names → its name in the files; a head may have
        none.

        None if the files cannot be read in parts.
        """
        if getattr(model.config, "quantization_config", None) is not None:
            return None
        renamings = get_model_conversion_mapping(model)
        if not all(isinstance(entry, WeightRenaming) for entry in renamings):
            return None
        prefix = f"{model.base_model_prefix}."
        files = self._checkpoint.tensors
        renamed = {rename_source_key(name, renamings, [])[0]: name for name in sorted(files)}
        found: dict[str, str] = {}
        seen: dict[int, str] = {}
        missing = []
        for name, tensor in model.state_dict(keep_vars=True).items():
            names = (name, name.removeprefix(prefix))
            source = next((renamed.get(n, n) for n in names if n in renamed or n in files), None)
            if source is None:
                missing.append((name, id(tensor)))
                continue
            if files[source].shape != tuple(tensor.shape) or files[source].dtype is None:
                return None
            if id(tensor) in seen and not self._checkpoint.same(seen[id(tensor)], source):
                return None  # transformers does not tie them then
            seen[id(tensor)] = found[name] = source
        if any(name.startswith(prefix) and key not in seen for name, key in missing):
            return None
        return found or None

    def allocate(self, device: torch.device) -> None:
        """Allocate memory for the parameters, or for the parts that remain after `model` was divided. Their content is
        undefined.

        Tensors that already have content (adapters, buffers) keep it.
        """
        if self.whole:
            self.model.to(device)
            return
        self.model._apply(lambda t: torch.empty_like(t, device=device) if t.device == _META else t.to(device))
        self.model.tie_weights()

    @torch.no_grad()
    def fill(self, local: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Read this rank's runs of each parameter, and each whole buffer. `local` returns the vector that holds the
        runs."""
        if self.whole:
            return
        parameters = dict(self.model.named_parameters())
        for name, source in self._files.items():
            if name in parameters:
                out, at = local(parameters[name]), 0
                for start, size in self._runs(name, self._shapes[name]):
                    self._checkpoint.read(source, start, out[at : at + size])
                    at += size
            else:
                self._checkpoint.read(source, 0, _tensor(self.model, name).view(-1))
        while self._pieces:
            name, piece = self._pieces.popitem()
            local(parameters[name]).copy_(piece)


class _weightless:
    """While peft looks at a model, its parameters claim to be on the CPU, but have no memory.

    peft puts adapters on the device of the layer's weight, and on "meta" they would lose their content.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model

    def __enter__(self) -> None:
        for parameter in self._model.parameters():
            torch.utils.swap_tensors(parameter, _like(parameter, torch.zeros(()).expand(parameter.shape)))

    def __exit__(self, *_: object) -> None:
        for parameter in self._model.parameters():
            if parameter.numel() > 1 and not any(parameter.stride()):
                torch.utils.swap_tensors(parameter, _like(parameter, torch.empty(parameter.shape, device=_META)))


class _Apart(TorchFunctionMode):
    """``torch.empty`` gives large tensors separate pages, which return to the system with them.

    Otherwise they would stay with malloc: glibc cannot reuse the gap that an aligned block leaves
    (https://sourceware.org/bugzilla/show_bug.cgi?id=14581), so dropped tensors would add up.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.empty or torch.device(kwargs.get("device") or "cpu").type != "cpu":
            return func(*args, **kwargs)
        like = func(*args, **kwargs | {"device": _META})
        if like.nbytes < 1 << 16:
            return func(*args, **kwargs)
        found = torch.frombuffer(mmap.mmap(-1, like.nbytes), dtype=like.dtype).view(like.shape)
        return found.requires_grad_(like.requires_grad)


def _like(parameter: torch.nn.Parameter, data: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(data, requires_grad=parameter.requires_grad)


def _units(model: torch.nn.Module) -> Iterator[_Unit]:
    """Yield modules in transformers' order of initialization: a decoder layer with everything in it, other modules one
    by one."""
    layers = {id(layer) for layer in decoder_layers(model)}

    def below(module: torch.nn.Module, owner: Any) -> Iterator[_Unit]:
        inner: _Unit = []
        for child in module.children():
            for unit in below(child, child if isinstance(child, PreTrainedModel) else owner):
                if id(module) in layers:
                    inner += unit
                else:
                    yield unit
        yield [*inner, (module, owner)]

    yield from below(model, model)


def _tensor(model: torch.nn.Module, name: str) -> torch.Tensor:
    path, _, last = name.rpartition(".")
    found: torch.Tensor = getattr(model.get_submodule(path), last)
    return found
