"""A run of each trainer with a tokenstore plan. Each trains a tiny model on the CPU and resumes after a kill.

    python -m tokenstore.examples.data DATA --steps 6
    python -m tokenstore.examples.trainers.hf DATA RUN --microbatch 2          # kill it, then continue with
    torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.hf DATA RUN --microbatch 2

The lines about data are between two comments, `# data` and `# end`. `common.py` has what the examples share; `journal.py`
records what a run really trained, for the matrix of docs/guides/trainer-matrix.md.
"""
