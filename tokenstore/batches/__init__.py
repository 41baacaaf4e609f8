"""Layer 3: fills numpy arrays with the rows of a step. Most of it is numba kernels.

In the order in which a step passes through them:

sampler.py   calls the kernels: locates rows (order/rows.py), plans spans, copies tokens; maps the files they need
planned.py   the rows of a microbatch after planning
planner.py   the first kernel: from rows to spans, for several microbatches at once
    concat_spans.py, packed_spans.py   one module per kind of packing
    shuffled.py   the permutation of the sequences of an epoch
    spans.py      a span is a run of tokens inside one document; a sequence is a list of spans
dealing.py   which rows of a step a rank gets
    costs.py     a kernel that measures the attention of rows, for plans that balance it
gather.py    the second kernel: from spans to arrays, one microbatch at a time
    masks.py      loss masks

What the kernels read:

block.py     the argument of both kernels: constants, and the addresses of all tables
tables.py    stores, sources and mapped files as arrays
packings.py  the packings of the current epochs as arrays
sources.py   sources and pools: their stores, and their sequences per epoch
sigbus.py    keeps the process alive if a file is truncated while a kernel reads it
"""
