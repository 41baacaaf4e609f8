"""Layer 6: adapters for trainers. Each module imports its own trainer; none is imported here.

huggingface.py  the Trainer of transformers      lightning.py  the Trainer of Lightning
torchdata.py    torchdata.nodes                  grain.py      data sources of Grain
common.py       what they share: from a trainer's count of updates to a position in a plan
"""
