"""Training scripts to read and to copy from. They run offline, on CPUs or GPUs.

data.py        stores and plans from the source of tokenstore: run it first
train_gpt.py   plain PyTorch under torchrun: gradient accumulation, a checkpoint, resuming with another world size
train_fsdp.py  the same with FSDP2, a DeviceMesh and torch.distributed.checkpoint
train_sft.py   conversations: templates, loss masks, packed rows with isolated documents
evaluate.py    every document once, the same number of batches on every rank
model.py       a small GPT, and three ways to isolate documents
online_mixture.py  weights that are decided from validation losses during the run
sources.py     where data.py and `tokenstore demo` get their text
steps.py       shared code: the command line, the process group, the loss, the end of a step
trainers/      one script per trainer
demo/          `tokenstore demo`

`tokenstore examples DIR` copies them to a folder of yours. They are programs that use the package: nothing else in the package
imports them, except the commands `demo` and `examples`.
"""
