"""Layer 3: the rows of a step -> arrays. Everything between an opened plan and numpy arrays, most of it numba kernels.

sources.py   sources and pools: the stores each draws from, and its sequences per epoch
tables.py    stores, sources and mapped files as arrays that kernels read
shuffled.py  rows -> the place of each in the shuffle of its epoch
spans.py     what a sequence consists of: runs of tokens, each inside one document
concat_spans.py, packed_spans.py   sequences -> spans
packings.py  the packings of the current epochs
gather.py    spans -> batch: the hot kernel
masks.py     loss masks
sampler.py   rows of a step -> filled arrays: calls the kernels, maps the files they ask for
sigbus.py    a file that is cut while a kernel reads it does not kill the process
"""
