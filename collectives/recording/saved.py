"""`without_saving`: what a program without data saves stays in memory, from which it can load it again."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from io import BytesIO
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.checkpoint.metadata import Metadata
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from collectives.recording.placement import device_of
from collectives.recording.replacements import Replacement, by_names, is_installed, returning
from collectives.recording.without_values import INTEGERS

_SAVE, _LOAD, _REDUCE, _STAT = torch.save, torch.load, Tensor.__reduce_ex__, os.stat
_SET_RNG_STATE = torch.set_rng_state
_RENAMING = "replace", "rename"
_COPYING = "link", "copy", "copy2", "copyfile"
_OF_OS = *_RENAMING, "remove", "unlink", "stat", "link"
_FILES = *(f"os.{name}" for name in _OF_OS), *(f"shutil.{name}" for name in (*_COPYING[1:], "move"))
SAVED: dict[str, bytes] = {}  # by path, instead of files
_SENT: dict[int, bytes] = {}  # what was last saved in memory, by its size


def without_saving() -> Iterator[Replacement]:
    """Yield replacements for functions that would overwrite the program's checkpoints."""
    yield "torch.save", wraps(_SAVE)(_save)
    yield "torch.load", wraps(_LOAD)(_load)
    yield from ((f"{module}.set_rng_state", _set_rng_state) for module in ("torch", "torch.random"))
    yield from ((name, _of_files(resolve_name(name))) for name in _FILES)
    yield "torch.Tensor.__reduce_ex__", _reduced
    yield from ((f"torch._C.ScriptModule.{name}", lambda *_, **__: b"") for name in ("save", "save_to_buffer"))
    yield "torch.distributed.checkpoint.state_dict_saver._save_state_dict", _save_distributed
    stager = "torch.distributed.checkpoint._state_dict_stager.StateDictStager"
    yield f"{stager}.stage", lambda _, state_dict, **__: state_dict  # of async_save
    yield "torch.distributed.fsdp._optim_utils._convert_state_with_orig_params", _states_of_parameters
    if is_installed("safetensors"):
        yield "safetensors.torch.save_file", returning(None)


def _states_of_parameters(
    _: Any, own: dict[Any, Any], infos: dict[str, Any], states: dict[Any, Any], __: bool, is_sharded: bool, on_cpu: bool
) -> dict[str, Any]:
    """Return the optimizer's state by parameter: whole, as FSDP gathers it from all ranks, or this rank's parts.

    own, infos: the keys of the states that this rank has parts of; FSDP's units, by parameter. is_sharded: parts.
    on_cpu: where whole states are, as they are by default. A frozen parameter has no state.
    """
    gathered = {key.unflat_param_names[0]: states[number] for key, number in own.items() if number is not None}
    alike: dict[str, Any] = next((gathered[name] for name in infos if name in gathered), {})
    for name, info in {} if is_sharded else infos.items():
        if not info.param_requires_grad[number := info.param_indices[name]]:
            continue
        shape = info.handle.flat_param._shapes[number]
        gathered[name] = {
            kind: value.new_empty(shape, device="cpu" if on_cpu else None)
            if isinstance(value, Tensor) and value.dim()
            else value
            for kind, value in alike.items()
        }
    return gathered


def _save(thing: Any, file: Any, *args: Any, **options: Any) -> None:
    """Save only in memory, with shapes; files of the program stay as they are."""
    if isinstance(file, BytesIO):
        _SAVE(thing, file, *args, **options)
        _SENT[file.getbuffer().nbytes] = file.getvalue()
    elif path := _path_of(file):
        SAVED[path] = b""
        with suppress(Exception):  # then it cannot be loaded again
            _SAVE(thing, saved := BytesIO(), *args, **options)
            SAVED[path] = saved.getvalue()


def _save_distributed(state_dict: Any, storage_writer: Any, *_: Any, **__: Any) -> Metadata:  # noqa: ARG001
    """Save nothing, but show the file by which programs know a whole checkpoint."""
    if folder := _path_of(getattr(storage_writer, "checkpoint_id", None)):
        SAVED[os.path.join(folder, ".metadata")] = b""
    return Metadata({})


def _load(file: Any, map_location: Any = None, **options: Any) -> Any:
    """Load, and map storages that were saved in memory, which torch cannot map."""
    map_location = _Places(map_location) if callable(map_location) else map_location
    if (saved := SAVED.get(_path_of(file))) is not None:
        file, options = BytesIO(saved), {**options, "mmap": None}
    elif isinstance(file, BytesIO) and not file.getvalue().strip(b"\0\1"):  # unknown bytes that another rank sends
        file = BytesIO(_SENT.get(file.getbuffer().nbytes, file.getvalue()))
    loaded = _LOAD(file, map_location, **options)
    if not isinstance(file, BytesIO) or map_location is None:
        return loaded

    def mapped(tensor: Tensor) -> Tensor:
        is_dict, device = isinstance(map_location, dict), tensor.device
        moved = tensor.detach().to(map_location.get(str(device), device) if is_dict else map_location)
        kind = nn.Parameter if isinstance(tensor, nn.Parameter) else Tensor.requires_grad_
        return tensor if moved.device == device else kind(moved, tensor.requires_grad)

    return tree_map_only(Tensor, mapped, loaded)


class _Places(dict[Any, Any]):
    """Finds devices by a function of the program, which torch cannot ask for tensors without data."""

    def __init__(self, place: Callable[[Any, str], Any]) -> None:
        super().__init__()
        self._place = place

    def get(self, location: Any, default: Any = None) -> Any:
        placed = self._place(torch.empty(0, device="cpu"), str(location))  # storages are read on the CPU
        return default if placed is None else str(placed.device)


def _set_rng_state(new_state: Tensor) -> None:
    """Set the state of random numbers, unless it comes from a file, without data."""
    if not isinstance(new_state, FakeTensor):
        _SET_RNG_STATE(new_state)


def _of_files(function: Any) -> Any:
    """Return a function of files that also knows those saved in memory, and leaves the disk's as they are."""

    def on_saved(given: dict[str, Any]) -> Any:
        path, target = next(iter(given.values())), given.get("dst")
        if (saved := SAVED.get(name := _path_of(path))) is None:
            returned = function(**given)
            if name and function.__name__ in _RENAMING:
                _rename_folder(f"{name}/", f"{_path_of(given['dst'])}/")
            return returned
        if function is _STAT:
            return _STAT(path if os.path.lexists(path) else __file__)
        if function.__name__ not in _COPYING:
            del SAVED[name]
        if target is not None:
            SAVED[_path_of(os.path.join(target, os.path.basename(name)) if os.path.isdir(target) else target)] = saved
        return target

    by_name = by_names(function, on_saved)

    @wraps(function)
    def called(*args: Any, **options: Any) -> Any:
        return by_name(*args, **options) if SAVED else function(*args, **options)  # by name takes longer

    return called


def _rename_folder(folder: str, target: str) -> None:
    for path in [path for path in SAVED if path.startswith(folder)]:
        SAVED[target + path.removeprefix(folder)] = SAVED.pop(path)


def _path_of(file: Any) -> str:
    name = file if isinstance(file, os.PathLike) else getattr(file, "name", file)  # the name of a Path is its last part
    return os.path.realpath(name) if isinstance(name, str | os.PathLike) else ""


def _reduced(tensor: Tensor, protocol: int) -> Any:
    """Pickle a tensor without data, or the data of integers, whose storage would have none when it is read."""
    options = {"dtype": tensor.dtype, "device": device_of(tensor), "requires_grad": tensor.requires_grad}
    if isinstance(tensor, FakeTensor):
        return _made_again, (tuple(tensor.shape), tensor.stride(), isinstance(tensor, nn.Parameter), options)
    if type(tensor) is Tensor and tensor.dtype in INTEGERS:
        with _disable_current_modes():
            return _made_of, (tensor.tolist(), options)
    return _REDUCE(tensor, protocol)  # type: ignore[no-untyped-call]


def _made_of(values: Any, options: dict[str, Any]) -> Tensor:
    return torch.tensor(values, **options)


def _made_again(shape: Any, stride: Any, is_parameter: bool, options: dict[str, Any]) -> Tensor:
    tensor = torch.empty_strided(shape, stride, **options)
    return nn.Parameter(tensor.detach(), tensor.requires_grad) if is_parameter else tensor


MADE_AGAIN: list[Any] = [_made_again, _made_of]  # functions that files saved in memory name
