"""Layer 6: adapters for trainers. Each module imports its trainer; this package imports none of them.

huggingface.py  the Trainer of transformers      lightning.py  the Trainer of Lightning
torchdata.py    torchdata.nodes                  grain.py      data sources of Grain
common.py       shared code: from a trainer's number of updates to a position in a plan
"""
