"""PyTorch's dense tensors in main memory as plain data.

A `Parameter` comes back as a tensor that requires gradients. What a tensor was computed from stays behind.
"""

from typing import Any

import torch

from . import checks

__all__ = ["FROM_DATA", "TO_DATA"]

# The elements that NumPy knows too, and those that travel as numbers of their size.
_NAMED = {
    "bool": "b1",
    "uint8": "u1",
    "uint16": "u2",
    "uint32": "u4",
    "uint64": "u8",
    "int8": "i1",
    "int16": "i2",
    "int32": "i4",
    "int64": "i8",
    "float16": "f2",
    "float32": "f4",
    "float64": "f8",
    "complex64": "c8",
    "complex128": "c16",
    "bfloat16": "i2",
}
# Older versions lack some.
_DTYPES = {name: getattr(torch, name) for name in _NAMED if hasattr(torch, name)}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def tensor_to_data(tensor: Any) -> Any:
    """Return a tensor as plain data."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise checks.refused("a torch.Tensor that isn't dense", "it as to_dense() or dequantize()")
    if tensor.device.type != "cpu":
        raise checks.refused(f"a torch.Tensor on {tensor.device.type}", "it as cpu()")
    name = _NAMES.get(tensor.dtype)
    if name is None:
        raise checks.refused(f"a torch.Tensor of {tensor.dtype}", "it as to(torch.float32)")
    found = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if name == "bfloat16":
        found = found.view(torch.int16)
    return (name, found.numpy(), bool(tensor.requires_grad))


def tensor_from_data(data: Any) -> Any:
    """Return the tensor that data from a worker describes."""
    name, values, gradients = checks.fields(data, 3, "a Tensor")
    if type(name) is not str or name not in _DTYPES:
        raise ValueError("got a Tensor of elements that aren't known here")
    if type(gradients) is not bool:
        raise TypeError(f"got requires_grad as {type(gradients).__name__}, expected a bool")
    dtype = _DTYPES[name]
    if gradients and not (dtype.is_floating_point or dtype.is_complex):
        raise ValueError("got a Tensor of whole numbers with gradients, expected real numbers")
    code = "b" if name == "bool" else _NAMED[name]
    found = checks.owned(checks.array(values, "elements of a Tensor", (code,), None))
    tensor = torch.from_numpy(found)
    if name == "bfloat16":
        tensor = tensor.view(torch.bfloat16)
    return tensor.requires_grad_(gradients)


TO_DATA = {"Tensor:1": tensor_to_data}
FROM_DATA = {"Tensor:1": tensor_from_data}
