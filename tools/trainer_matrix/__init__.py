"""The matrix of trainers: which were run with tokenstore, how, in which version, and whether their batches were right."""
