"""Training scripts to read and to copy from. They run offline, on CPUs or GPUs.

data.py        stores and plans from the text of this clone: run it first
train_gpt.py   plain PyTorch under torchrun: gradient accumulation, a checkpoint, resuming with another world size
train_fsdp.py  the same with FSDP2, a DeviceMesh and torch.distributed.checkpoint
train_sft.py   conversations: templates, loss masks, packed rows with isolated documents
evaluate.py    every document once, the same number of batches on every rank
model.py       a small GPT, and three ways to isolate documents
steps.py       shared code: the command line, the process group, the loss, the end of a step
"""
