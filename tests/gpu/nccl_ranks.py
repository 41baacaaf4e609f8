"""One rank of a process group of nccl: `python -m tests.gpu.nccl_ranks FOLDER`."""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from tests.support.processes.launched import leave
from tests.support.trainers.microbatches import small_plan
from tokenstore import TokenLoader

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    total = torch.ones((), device=device)
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    leave(
        folder,
        "rows",
        [batch["input_ids"].cpu().numpy() for batch in TokenLoader(small_plan(folder / "a"), device=device)],
    )
    dist.destroy_process_group()
