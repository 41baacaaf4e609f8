"""Addresses of mapped files -> arrays inside a kernel: a table of addresses is one array, a thousand maps are not."""

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def uint16_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the uint16 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.uint16)(types.int64), _to_pointer


@intrinsic
def uint32_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the uint32 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.uint32)(types.int64), _to_pointer


@intrinsic
def int64_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the int64 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.int64)(types.int64), _to_pointer


def _to_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))
