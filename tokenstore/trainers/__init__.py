"""Layer 6: adapters for trainers. Each module imports its trainer; this package imports none of them.

huggingface.py  the Trainer of transformers, TRL       lightning.py  the Trainer of Lightning
accelerate.py   loops with Accelerate                  deepspeed.py  DeepSpeed engines
ray.py          workers of Ray Train                   torchtitan.py torchtitan, in both of its contracts
olmo_core.py    the Trainer of OLMo-core               litgpt.py     litgpt pretrain
megatron.py     Megatron-LM and Megatron-core          jax.py        JAX, by process
torchdata.py    torchdata.nodes                        grain.py      data sources of Grain
scripts.py      nanoGPT, nanochat, modded-nanogpt, which are no packages
common.py       shared code: from a trainer's number of updates to a position in a plan
"""
