"""`tokenstore demo`: build two stores, train, kill, resume with another world size, and compare the batches.

run.py    the demo, step by step
train.py  its training script, for one or several processes; its model is that of the examples
"""
