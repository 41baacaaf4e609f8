"""Addresses of mapped files -> arrays inside a kernel: a table of addresses is one array, a thousand maps are not."""

from typing import Any

from llvmlite import ir
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


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask the processor to bring the cache line at an int64 address near; a wrong address is harmless."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], function_type)
        read, to_second_level, data = (ir.Constant(number, value) for value in (0, 2, 1))
        builder.call(function, [builder.inttoptr(arguments[0], byte_pointer), read, to_second_level, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate
