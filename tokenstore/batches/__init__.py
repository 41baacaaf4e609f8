"""Layer 3: the rows of a step -> arrays. Everything between an opened plan and numpy arrays, most of it numba kernels.

From a step number to its arrays, in this order:

sampler.py   locates the rows of steps (order/rows.py), calls the kernels, and maps the files that they need
planner.py   rows -> spans, for several microbatches at once: the first kernel
    concat_spans.py, packed_spans.py   by packing; shuffled.py   the place of each row in the shuffle of its epoch
    spans.py   what a sequence consists of: runs of tokens, each inside one document
gather.py    spans -> arrays, a microbatch at a time: the second kernel; masks.py   loss masks

What these read:

block.py     the argument of both kernels: constants, and addresses of all tables
tables.py    stores, sources and mapped files as arrays
packings.py  the packings of the current epochs
sources.py   sources and pools: the stores each draws from, and its sequences per epoch
sigbus.py    keeps the process alive if a file is truncated while a kernel reads it
"""
