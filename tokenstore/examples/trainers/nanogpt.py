"""Train a plan with nanoGPT's train.py, in which `get_batch` is replaced.

    CHECKOUT_NANOGPT=nanoGPT python -m tokenstore.examples.trainers.nanogpt DATA RUN
    CHECKOUT_NANOGPT=nanoGPT torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.nanogpt DATA RUN

The script is read from a checkout. Besides `get_batch`, only what needs a GPU with several processes is changed, and some
lines are added that record what is trained. If it is killed, the same command continues.
"""

import os
import re
import sys
from pathlib import Path
from typing import Any

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, main

GET_BATCH = """
from tokenstore.trainers.scripts import GetBatch

plans = {"train": "plan.yaml", "val": "evaluation.yaml"}
get_batch = GetBatch(
    plans, batch_size, accumulation=gradient_accumulation_steps, start=lambda: iter_num, device=device
)
"""


def script(checkout: Path) -> str:
    """The text of train.py with another get_batch."""
    text = (checkout / "train.py").read_text()
    text, count = re.subn(r"def get_batch\(split\):\n(?:    .*\n|\n)*", lambda match: GET_BATCH, text)
    assert count == 1, "train.py has another get_batch"
    changes = {
        "device = f'cuda:{ddp_local_rank}'": "device = 'cpu'",
        "torch.cuda.set_device(device)": "pass",
        "DDP(model, device_ids=[ddp_local_rank])": "DDP(model)",
        "exec(open('configurator.py').read())": f"exec(open({str(checkout / 'configurator.py')!r}).read())",
        "X, Y = get_batch('train') # fetch": "record(globals())\nX, Y = get_batch('train') # fetch",
        '        print(f"iter {iter_num}': '        journal_loss(iter_num, lossf)\n        print(f"iter {iter_num}',
    }
    for old, new in changes.items():
        assert text.count(old) == 1, f"train.py has not one line {old}"
        text = text.replace(old, new)
    return text


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one."""
    checkout = Path(os.environ["CHECKOUT_NANOGPT"])
    sys.path.insert(0, str(checkout))
    world_size, steps = int(os.environ.get("WORLD_SIZE", 1)), options.plan.num_steps or 0
    settings: dict[str, Any] = {
        "out_dir": str(options.run),
        "device": "cpu",
        "backend": "gloo",
        "dtype": "float32",
        "compile": False,
        "init_from": "resume" if (options.run / "ckpt.pt").exists() else "scratch",
        "gradient_accumulation_steps": options.plan.global_batch_size(0) // options.microbatch,
        "batch_size": options.microbatch,
        "block_size": options.plan.config.sequence_length,
        "n_layer": 1,
        "n_head": 1,
        "n_embd": 16,
        "max_iters": steps - 1,
        "eval_interval": 1,
        "eval_iters": 2,
        "decay_lr": False,
        "grad_clip": 0.0,
    }
    sys.argv = ["train.py", *(f"--{name}={value}" for name, value in settings.items())]
    assert options.plan.global_batch_size(0) % (options.microbatch * world_size) == 0

    def record(names: dict[str, Any]) -> None:
        journal.resumed(names["iter_num"])
        model = names["model"].module if world_size > 1 else names["model"]
        journal.watch(model, options.plan, options.eval_plan, logits=lambda output: output[0])

    names = {"__name__": "__main__", "record": record, "journal_loss": journal.loss}
    exec(compile(script(checkout), "train.py", "exec"), names)


if __name__ == "__main__":
    main(__doc__, train)
