"""`python -m tools.demo`: build two stores, train, kill, resume with another world size, and compare the batches.

__main__.py  the demo, step by step
sources.py   two real corpora that every machine has
train.py     the training script, for one or several processes; its model is that of tools.examples
"""
