"""Weights between torch and the C programs: replay-actor acts with a network that was trained here, and the reverse.

A C network is an optional convolution, hidden layers, and a linear output or a dueling head (proto/PROTOCOL.md, 21). A module is read in
the order in which its layers were registered: ``nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))`` is such a network.
Its activation must be that of the run's file (agent.activation); a convolution is followed by ReLU. The layers of a dueling head
are the attributes ``value`` and ``advantage``.
"""
import io
import json
from typing import Any, Iterator, Mapping

import numpy as np
import torch
from torch import nn

from .. import weights
from ..client import Client
from ..closing import Flushing
from ..errors import InvalidArgument
from ..params import DEFAULT

# The networks that an actor of each algorithm needs. Policies of sac give means, then log deviations.
ALGORITHMS = {"dqn": ("q",), "ddpg": ("policy", "q1"), "td3": ("policy", "q1"), "sac": ("policy", "q1"),
              "impala": ("policy", "value"), "bc": ("policy",)}


def tensors_of(module: nn.Module, prefix: str) -> dict[str, np.ndarray]:
    """The module's parameters under the names and in the shapes of proto/PROTOCOL.md, 21.

    >>> {name: array.shape for name, array in tensors_of(nn.Linear(4, 2), "q").items()}
    {'q/layer0/weight': (4, 2), 'q/layer0/bias': (2,)}
    """
    out = {}
    for name, layer, planes in _layers(module):
        bias = layer.bias if layer.bias is not None else torch.zeros(layer.weight.shape[0])
        out[f"{prefix}/{name}/weight"] = _array(_to_c(layer, planes))
        out[f"{prefix}/{name}/bias"] = _array(bias)
    return out


def load(module: nn.Module, tensors: Mapping[str, np.ndarray], prefix: str) -> None:
    """Fills the module from tensors of a C learner: ``load(q, replaybus.weights.load("best.weights"), "q")``."""
    with torch.no_grad():
        for name, layer, planes in _layers(module):
            layer.weight.copy_(_from_c(layer, planes, _find(tensors, f"{prefix}/{name}/weight", _to_c(layer, planes))))
            if layer.bias is not None:
                layer.bias.copy_(_find(tensors, f"{prefix}/{name}/bias", layer.bias))


def _find(tensors: Mapping[str, np.ndarray], name: str, like: torch.Tensor) -> torch.Tensor:
    array = tensors.get(name)
    if array is None or array.shape != tuple(like.shape):
        there = "not in the weights" if array is None else f"{list(array.shape)} in the weights"
        raise InvalidArgument(f"tensor '{name}' is {there} and {list(like.shape)} in the module")
    if array.dtype == np.uint16 and like.is_floating_point():  # bfloat16
        return torch.from_numpy(array.astype("int16")).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().to("cpu", torch.float32).contiguous().numpy()


def _as_is(tensor: torch.Tensor) -> np.ndarray:
    """The values on the host; numpy has no bfloat16, which becomes uint16 with the same bits."""
    tensor = tensor.detach().cpu().contiguous()
    return tensor.view(torch.int16).numpy().view("uint16") if tensor.dtype == torch.bfloat16 else tensor.numpy()


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Each layer with its name at the C programs, and for the layer after a convolution the number of its filters."""
    found = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]
    _check(module, [layer for _, layer in found])
    filters = 0
    for i, (name, layer) in enumerate(found):
        head = name.rpartition(".")[2]
        yield head if head in ("value", "advantage") else f"layer{i}", layer, filters
        filters = layer.out_channels if isinstance(layer, nn.Conv2d) else 0


def _check(module: nn.Module, layers: list[nn.Module]) -> None:
    known = {id(parameter) for layer in layers for parameter in layer.parameters()}
    for name, parameter in module.named_parameters():
        if id(parameter) not in known:
            raise InvalidArgument(f"parameter '{name}' belongs to neither a Linear nor a Conv2d layer: the C networks have no such layer")
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.Conv2d) and (i > 0 or layer.stride != (1, 1) or layer.padding != (0, 0) or layer.groups != 1 or
                                             layer.dilation != (1, 1) or layer.kernel_size[0] != layer.kernel_size[1]):
            raise InvalidArgument(f"{layer} is not a convolution of the C networks: these have one, as the first layer, with a "
                                  "square kernel, stride 1 and no padding")


def _to_c(layer: nn.Module, planes: int) -> torch.Tensor:
    """The weights as the C networks have them: inputs before outputs; images by row, column, plane."""
    weight = layer.weight
    if isinstance(layer, nn.Conv2d):
        return weight.permute(2, 3, 1, 0)
    if planes:  # torch flattens the output of a convolution by plane, row, column
        weight = weight.unflatten(1, (planes, -1)).transpose(1, 2).flatten(1)
    return weight.t()


def _from_c(layer: nn.Module, planes: int, weight: torch.Tensor) -> torch.Tensor:
    """The reverse of _to_c."""
    if isinstance(layer, nn.Conv2d):
        return weight.permute(3, 2, 0, 1)
    return weight.t().unflatten(1, (-1, planes)).transpose(1, 2).flatten(1) if planes else weight.t()


def policy(algorithm: str, **modules: nn.Module) -> dict[str, np.ndarray]:
    """What an actor of this algorithm needs: ``policy("dqn", q=network)``, ``policy("sac", policy=actor, q1=critic)``."""
    wanted = ALGORITHMS.get(algorithm)
    if wanted is None:
        raise InvalidArgument(f"there is no algorithm '{algorithm}': the C actors know {', '.join(ALGORITHMS)}")
    if set(modules) != set(wanted):
        raise InvalidArgument(f"an actor of {algorithm} needs the networks {', '.join(wanted)}, not {', '.join(modules) or 'none'}")
    return {name: array for prefix in wanted for name, array in tensors_of(modules[prefix], prefix).items()}


def _pack(state: Any) -> np.ndarray:
    """A state dict as bytes: an npz file of its tensors and, as JSON, of everything around them. Unlike pickle, reading it runs no code."""
    arrays = []

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            arrays.append(_as_is(value))
            return {"bfloat16" if value.dtype == torch.bfloat16 else "tensor": len(arrays) - 1}
        if isinstance(value, Mapping):
            return {"dict": [[key, plain(item)] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            return {type(value).__name__: [plain(item) for item in value]}
        return value

    text, block = json.dumps(plain(state)), io.BytesIO()
    np.savez(block, *arrays, form=np.frombuffer(text.encode(), "uint8"))
    return np.frombuffer(block.getvalue(), "uint8")


def _unpack(block: np.ndarray) -> Any:
    arrays = np.load(io.BytesIO(block.tobytes()), allow_pickle=False)

    def whole(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        (kind, inner), = value.items()
        if kind == "tensor":
            return torch.from_numpy(arrays[f"arr_{inner}"])
        if kind == "bfloat16":
            return torch.from_numpy(arrays[f"arr_{inner}"].view("int16")).view(torch.bfloat16)
        if kind == "dict":
            return {key: whole(item) for key, item in inner}
        return {"list": list, "tuple": tuple}[kind](whole(item) for item in inner)

    return whole(json.loads(arrays["form"].tobytes()))


class _Networks(Flushing):
    """Publishes networks without waiting, and saves them with what else belongs to a learner's state."""

    def __init__(self, client: Client, modules: dict[str, nn.Module], bf16: bool = False) -> None:
        self._modules, self._kept = modules, {}
        self._slot = client.params.publisher(weights.SLOT, bf16=bf16)

    def keep(self, **objects: Any) -> Any:
        """Saves and loads these, too: optimisers, target networks, whatever has ``state_dict`` and ``load_state_dict``. Actors do not get
        them. Returns the publisher."""
        self._kept.update(objects)
        return self

    def _arrays(self) -> dict[str, np.ndarray]:
        raise NotImplementedError

    def _fill(self, tensors: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError

    def tensors(self, step: int) -> dict[str, np.ndarray]:
        """The networks as they are now, and the learner's step."""
        return {**self._arrays(), weights.STEPS: np.array([step], "uint64")}

    def put(self, step: int) -> None:
        """Publishes the networks as they are now. Of several versions that wait, only the newest is sent."""
        self._slot.put(weights.encode(self.tensors(step)))

    def flush(self, timeout: Any = DEFAULT) -> int:
        """Waits until the newest version is stored; returns its number."""
        return self._slot.flush(timeout)

    def keeps(self, thing: Any) -> bool:
        """Whether the state of this object is saved."""
        return any(thing is one for one in self._kept.values())

    def state(self, step: int) -> dict[str, np.ndarray]:
        """The networks and what is kept: what a learner continues from."""
        kept = {f"kept/{name}": _pack(thing.state_dict()) for name, thing in self._kept.items()}
        return {**self.tensors(step), **kept}

    def save(self, path: Any, step: int) -> None:
        """Writes the networks and what is kept to a file."""
        weights.save(path, self.state(step))

    def load(self, path: Any) -> int:
        """Fills the networks and what is kept from such a file, and returns the learner's step. What the file does not have stays as it
        is: it may be ``best.weights``, or of a C learner."""
        return self.restore(weights.load(path))

    def restore(self, tensors: Mapping[str, np.ndarray]) -> int:
        """The reverse of ``state``: returns the learner's step."""
        self._fill(tensors)
        for name, thing in self._kept.items():
            if f"kept/{name}" in tensors:
                thing.load_state_dict(_unpack(tensors[f"kept/{name}"]))
        return int(tensors[weights.STEPS][0])

    def _give_up(self) -> None:
        self._slot._give_up()

    def close(self, timeout: Any = DEFAULT) -> None:
        """Waits until the newest version is stored, at most for ``timeout`` seconds."""
        self._slot.close(timeout)


class Publisher(_Networks):
    """Publishes networks for C actors and evaluators without waiting: ``Publisher(client, "dqn", q=network).put(step)``. Its files
    are for ``replay-actor --weights`` and ``actors.weights``, too."""

    def __init__(self, client: Client, algorithm: str, **modules: nn.Module) -> None:
        policy(algorithm, **modules)  # reports mistakes at once
        self._algorithm = algorithm
        super().__init__(client, modules)

    def _arrays(self) -> dict[str, np.ndarray]:
        return policy(self._algorithm, **self._modules)

    def _fill(self, tensors: Mapping[str, np.ndarray]) -> None:
        for prefix, module in self._modules.items():
            load(module, tensors, prefix)


class States(_Networks):
    """Publishes networks of any form, as state dicts, for actors and evaluators of one's own: ``States(client, policy=network)``.
    There, ``load_states(tensors, policy=network)`` fills the same network. ``bf16``: actors may take bfloat16 instead."""

    def __init__(self, client: Client, *, bf16: bool = False, **modules: nn.Module) -> None:
        super().__init__(client, modules, bf16)

    def _arrays(self) -> dict[str, np.ndarray]:
        return {f"{prefix}/{name}": _as_is(value)
                for prefix, module in self._modules.items() for name, value in module.state_dict().items()}

    def _fill(self, tensors: Mapping[str, np.ndarray]) -> None:
        load_states(tensors, **self._modules)


def load_states(tensors: Mapping[str, np.ndarray], **modules: nn.Module) -> None:
    """Fills networks from tensors that ``States`` published or saved."""
    for prefix, module in modules.items():
        with torch.no_grad():
            for name, value in module.state_dict().items():
                value.copy_(_find(tensors, f"{prefix}/{name}", value))
