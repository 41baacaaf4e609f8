"""Layer 3: fills numpy arrays with the rows of a step. Most of it is numba kernels.

In the order in which a step passes through them:

places.py    lists the microbatches of a run: steps and rows
sampler.py   calls the kernels: locates rows, plans spans, copies tokens; maps the files they need
locator.py   the tables by which rows of the current steps are located (order/rows.py)
planner.py   the first kernel: from rows of steps to spans, for several microbatches at once
    concat_spans.py, packed_spans.py   one module per kind of packing
    shuffled.py       the permutation of the sequences of an epoch
    lane_numbers.py   the same for sources with locality
    spans.py          a span is a run of tokens inside one document; a sequence is a list of spans
planned.py   its result: the rows of microbatches, and where their tokens are
dealing.py   which rows of a step a rank gets
    costs.py     a kernel that measures the attention of rows, for plans that balance it
gather.py    the second kernel: from spans to arrays, one microbatch at a time
    ahead.py          prefetches the memory of the next microbatch
    token_copies.py   copies tokens to arrays of other types
    masks.py          loss masks

Stores at URLs, and sources with locality (lanes):

remote_rows.py   fetches what planned spans need
    byte_ranges.py   the bytes of files that spans consist of
    coming.py        what a microbatch waits for
lane_rows.py     which blocks of lanes are needed at a step
    lane_ranges.py      where these blocks are in files
    open_blocks.py      their caches, for stores at URLs
    block_reads.py      rows from cached blocks
    block_readahead.py  blocks read ahead, for stores on disks

What the kernels read:

block.py     the argument of both kernels: constants, and the addresses of all tables
tables.py    stores, sources and mapped files as arrays
packings.py  the packings of the current epochs as arrays
sources.py   sources and pools: their stores, and their sequences per epoch
sigbus.py    keeps the process alive if a file is truncated while a kernel reads it
"""
