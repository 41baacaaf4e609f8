"""`python -m tools.demo`: build two stores, train, kill, resume in another world size: the same batches.

__main__.py  the story, step by step
sources.py   two real corpora that every machine has
train.py     the training script, run by one process or by several; its model is that of tools.examples
"""
