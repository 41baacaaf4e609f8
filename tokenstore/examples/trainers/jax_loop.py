"""Train a plan with JAX, on one process or several.

    python -m tokenstore.examples.trainers.jax_loop DATA RUN
    torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.jax_loop DATA RUN

If it is killed, the same command continues.
"""

import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tokenstore.examples.trainers import journal
from tokenstore.examples.trainers.common import Options, main
from tokenstore.trainers.jax import ProcessLoader

Params = dict[str, Any]


def loss_sum(params: Params, input_ids: Any, targets: Any) -> Any:
    """The sum of the losses over all targets of a global batch, int32[B, L]."""
    scores = jax.nn.log_softmax(params["embedding"][input_ids] @ params["head"])
    losses = -jnp.take_along_axis(scores, jnp.maximum(targets, 0)[..., None], -1)[..., 0]
    return jnp.sum(losses * (targets >= 0))


class Run:
    """The parameters, the sums of a step, and the checkpoints, which process 0 writes."""

    def __init__(self, options: Options):
        rng = np.random.default_rng(0)
        shapes = {"embedding": (options.vocab_size, 16), "head": (16, options.vocab_size)}
        self.params: Params = {name: rng.normal(0, 0.02, shape).astype(np.float32) for name, shape in shapes.items()}
        self.options, self.step, self.given = options, 0, 0
        self.gradients, self.sums = jax.tree.map(np.zeros_like, self.params), np.zeros(2)

    def load(self) -> Any:
        """Restore the last checkpoint, if there is one. Returns the state of the data."""
        path = self.options.run / "checkpoint.npz"
        if not path.exists():
            return {}
        with np.load(path) as saved:
            counts = json.loads(str(saved["counts"]))
            self.params = {name: saved[name] for name in self.params}
            self.gradients = {name: saved[f"gradient.{name}"] for name in self.params}
        self.step, self.given, self.sums = counts["step"], counts["given"], np.array(counts["sums"])
        return counts["data"]

    def save(self, data: Any) -> None:
        """Write a checkpoint."""
        if jax.process_index():
            return
        counts = {"step": self.step, "given": self.given, "sums": self.sums.tolist(), "data": data}
        gradients = {f"gradient.{name}": each for name, each in self.gradients.items()}
        new = self.options.run / "new.npz"
        np.savez(new, counts=np.array(json.dumps(counts)), **self.params, **gradients)
        new.replace(self.options.run / "checkpoint.npz")

    def add(self, batch: Any, compute: Any) -> None:
        """Add the loss and the gradients of a global batch."""
        total, gradients = compute(self.params, batch["input_ids"], batch["targets"])
        local = jax.tree.map(lambda each: np.asarray(each.addressable_data(0)), (total, gradients))
        self.gradients = jax.tree.map(np.add, self.gradients, local[1])
        self.sums += np.array([local[0], np.asarray(jnp.sum(batch["targets"] >= 0).addressable_data(0))])

    def record(self, batch: Any, training: bool) -> None:
        """Record the rows of this process."""
        rows = np.concatenate([np.asarray(shard.data) for shard in batch["input_ids"].addressable_shards])
        scores = torch.from_numpy(self.params["embedding"][rows] @ self.params["head"])
        ids = rows.astype(np.int64)
        journal.batch(ids, training, journal.by_hand(ids, scores, self.options.plan, self.options.eval_plan))

    def update(self) -> None:
        """End a step: a step of SGD with the mean gradient per target."""
        mean, targets = self.mean()
        journal.loss(self.step, mean)
        self.params = jax.tree.map(lambda each, gradient: each - 0.5 * gradient / targets, self.params, self.gradients)
        self.gradients = jax.tree.map(np.zeros_like, self.params)
        self.step, self.given = self.step + 1, 0

    def mean(self) -> tuple[float, float]:
        """Mean loss per target since the last call, and the number of targets."""
        total, targets = self.sums.tolist()
        self.sums = np.zeros(2)
        return total / targets, targets


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    if (world_size := int(os.environ.get("WORLD_SIZE", 1))) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            f"127.0.0.1:{int(os.environ['MASTER_PORT']) + 1}", world_size, int(os.environ["RANK"])
        )
    run = Run(options)
    mesh = Mesh(np.array(jax.devices()), ("data",))
    # data
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    shared: dict[str, Any] = {"microbatch_size": options.microbatch, "sharding": sharding}
    loader = ProcessLoader(options.plan, prefetch=options.workers, inside_step="continue", **shared)
    loader.load_state_dict(run.load())
    # end
    journal.resumed(run.step, run.given)
    compute = jax.jit(jax.value_and_grad(loss_sum), out_shardings=NamedSharding(mesh, PartitionSpec()))
    for batch in loader:
        journal.kill_here()
        run.add(batch, compute)
        run.record(batch, training=True)
        run.given += 1
        if loader.step_ended:
            run.update()
        if loader.step_ended or options.inside:
            run.save(loader.state_dict())
    for batch in ProcessLoader(options.eval_plan, restart=True, skip_empty=True, **shared):
        run.add(batch, compute)
        run.record(batch, training=False)
    journal.evaluated(run.mean()[0])


if __name__ == "__main__":
    main(__doc__, train)
