"""Layer 0: operations that numba lacks: arrays at an address, prefetching, counting zero bits, copies of chunks of tokens.

With arrays at an address, a kernel can read any number of mapped files. It gets one array with their addresses instead
of one argument per file.

A chunk is CHUNK elements, copied by vector instructions. A loop over arrays at addresses is slower, because the compiler
cannot know that its input and its output do not overlap: it checks that again for every loop, and adds a second loop for
the rest of the elements.
"""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec

from llvmlite import ir
from numba import carray, types
from numba.extending import intrinsic

_P = ParamSpec("_P")

CHUNK = 32  # elements: one cache line of uint16


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


def _load_chunk(context: Any, builder: Any, pointer_type: Any, pointer: Any) -> Any:
    """Generate the load of a chunk from a numba pointer, aligned to its elements only."""
    element = context.get_value_type(pointer_type.dtype)
    vector = ir.VectorType(element, CHUNK)
    return builder.load(builder.bitcast(pointer, vector.as_pointer()), align=element.width // 8)


def _store_chunk(context: Any, builder: Any, vector: Any, pointer_type: Any, pointer: Any) -> None:
    """Generate the store of a chunk to a numba pointer, aligned to its elements only."""
    builder.store(vector, builder.bitcast(pointer, vector.type.as_pointer()), align=vector.type.element.width // 8)


def _resize(context: Any, builder: Any, vector: Any, pointer_type: Any) -> Any:
    """Generate the conversion of a chunk of unsigned integers to the element type of a numba pointer."""
    before, after = vector.type.element.width, context.get_value_type(pointer_type.dtype).width
    to = ir.VectorType(ir.IntType(after), CHUNK)
    if before == after:
        return vector
    return builder.zext(vector, to) if before < after else builder.trunc(vector, to)


def _repeat(builder: Any, value: Any) -> Any:
    """Generate a chunk that has `value` in every element."""
    nothing = ir.Constant(ir.VectorType(value.type, CHUNK), ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), CHUNK), [0] * CHUNK))


@_intrinsic
def copy_chunk(typing_context: Any, tokens: Any, out: Any) -> Any:
    """Copy CHUNK unsigned integers from a pointer to a pointer to integers of any size."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = _load_chunk(context, builder, signature.args[0], arguments[0])
        vector = _resize(context, builder, vector, signature.args[1])
        _store_chunk(context, builder, vector, signature.args[1], arguments[1])
        return context.get_dummy_value()

    return types.void(tokens, out), generate


@_intrinsic
def copy_chunk_where(typing_context: Any, tokens: Any, bits: Any, other: Any, out: Any) -> Any:
    """Like `copy_chunk`, with int64 `other` in place of element k if bit k of the uint64 `bits` is 0. `out` is int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer, bits, other, target = arguments
        vector = _load_chunk(context, builder, signature.args[0], pointer)
        vector = _resize(context, builder, vector, signature.args[3])
        flags = builder.bitcast(builder.trunc(bits, ir.IntType(CHUNK)), ir.VectorType(ir.IntType(1), CHUNK))
        vector = builder.select(flags, vector, _repeat(builder, other))
        _store_chunk(context, builder, vector, signature.args[3], target)
        return context.get_dummy_value()

    return types.void(tokens, types.uint64, types.int64, out), generate


@_intrinsic
def largest_of_chunk(typing_context: Any, tokens: Any) -> Any:
    """The largest of CHUNK unsigned integers at a pointer, as int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = _load_chunk(context, builder, signature.args[0], arguments[0])
        element = vector.type.element
        function_type = ir.FunctionType(element, [vector.type])
        name = f"llvm.vector.reduce.umax.v{CHUNK}i{element.width}"
        reduce = builder.module.globals.get(name) or ir.Function(builder.module, function_type, name)
        return builder.zext(builder.call(reduce, [vector]), ir.IntType(64))

    return types.int64(tokens), generate


@_intrinsic
def fill_chunk(typing_context: Any, out: Any, value: Any, step: Any) -> Any:
    """Write value, value + step, ... to CHUNK elements of a pointer to int64."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target, value, step = arguments
        numbers = ir.Constant(ir.VectorType(value.type, CHUNK), list(range(CHUNK)))
        vector = builder.add(_repeat(builder, value), builder.mul(numbers, _repeat(builder, step)))
        _store_chunk(context, builder, vector, signature.args[0], target)
        return context.get_dummy_value()

    return types.void(out, types.int64, types.int64), generate
