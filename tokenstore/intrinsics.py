"""Layer 0: what numba does not offer by itself: arrays at an address, prefetching, counting zero bits.

A table of the addresses of mapped files is one array that a kernel takes; a thousand maps are not.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

_P = ParamSpec("_P")


array_at: Any = carray  # its types would have every length be an int, and kernels count in np.int64


def _intrinsic(function: Callable[Concatenate[Any, _P], Any]) -> Callable[_P, Any]:
    """`intrinsic`, typed as kernels call it: numba passes the typing context."""
    made: Any = intrinsic(function)
    called: Callable[_P, Any] = made
    return called


@_intrinsic
def uint8_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the byte at an int64 address, for `numba.carray`."""
    return types.CPointer(types.uint8)(types.int64), _to_pointer


@_intrinsic
def uint16_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the uint16 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.uint16)(types.int64), _to_pointer


@_intrinsic
def uint32_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the uint32 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.uint32)(types.int64), _to_pointer


@_intrinsic
def int32_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the int32 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.int32)(types.int64), _to_pointer


@_intrinsic
def int64_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the int64 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.int64)(types.int64), _to_pointer


@_intrinsic
def float32_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the float32 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.float32)(types.int64), _to_pointer


@_intrinsic
def uint64_at(typing_context: Any, address: Any) -> Any:
    """A pointer to the uint64 at an int64 address, for `numba.carray`."""
    return types.CPointer(types.uint64)(types.int64), _to_pointer


def _to_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))


@_intrinsic
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


@_intrinsic
def own_word(typing_context: Any) -> Any:
    """Address, as int64, of a word that belongs to the compiled function; 0 until it writes there."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, name = ir.IntType(64), "tokenstore_own_word"
        word = builder.module.globals.get(name)
        if word is None:
            word = ir.GlobalVariable(builder.module, number, name)
            word.initializer, word.linkage = ir.Constant(number, 0), "internal"
        return builder.ptrtoint(word, number)

    return types.int64(), generate


@_intrinsic
def trailing_zeros(typing_context: Any, word: Any) -> Any:
    """Zero bits below the lowest set bit of a uint64 that is not 0, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate
