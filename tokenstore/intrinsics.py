"""Layer 0: operations that numba lacks: arrays at an address, prefetching, counting zero bits.

With arrays at an address, a kernel can read any number of mapped files. It gets one array with their addresses instead
of one argument per file.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

_P = ParamSpec("_P")


array_at: Any = carray  # untyped, because its stub accepts only int lengths, and kernels count in np.int64


def _intrinsic(function: Callable[Concatenate[Any, _P], Any]) -> Callable[_P, Any]:
    """`numba.extending.intrinsic` with the type that kernels see: numba adds the typing context itself."""
    made: Any = intrinsic(function)
    called: Callable[_P, Any] = made
    return called


def _to_pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Generate the conversion of an integer to a pointer. It compiles to nothing."""
    return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))


def _pointer_to(element: Any) -> Callable[[Any], Any]:
    """An intrinsic that turns an int64 address into a pointer to elements of a numba type, for `array_at`."""

    @_intrinsic
    def pointer(typing_context: Any, address: Any) -> Any:
        return types.CPointer(element)(types.int64), _to_pointer

    return pointer


uint8_at, uint16_at, uint32_at, uint64_at = map(_pointer_to, (types.uint8, types.uint16, types.uint32, types.uint64))
int32_at, int64_at, float32_at = map(_pointer_to, (types.int32, types.int64, types.float32))


@_intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Prefetch the cache line at an int64 address for reading.

    The instruction is only a hint. An address that is not mapped is harmless, so callers need not check addresses
    first.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte_pointer = ir.IntType(8).as_pointer()
        number = ir.IntType(32)
        function_type = ir.FunctionType(ir.VoidType(), [byte_pointer, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [byte_pointer], function_type)
        # Arguments of llvm.prefetch: 0 is a read, 2 asks for the second-level cache and higher, 1 is data
        read, to_second_level, data = (ir.Constant(number, value) for value in (0, 2, 1))
        builder.call(function, [builder.inttoptr(arguments[0], byte_pointer), read, to_second_level, data])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@_intrinsic
def own_word(typing_context: Any) -> Any:
    """The int64 address of a 64-bit word that belongs to the compiled function. The word is initially 0.

    A signal handler gets no argument of ours and cannot use Python objects. It keeps the address of its state here.
    """

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
    """Number of zero bits below the lowest set bit of a uint64, as int64. The result is undefined for 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), generate
