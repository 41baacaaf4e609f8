"""Train a plan with Grain, whose threads prefetch.

python -m tokenstore.examples.trainers.grain_dataset DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.grain_dataset DATA RUN
"""

from grain.experimental import ThreadPrefetchIterDataset

from tokenstore.examples.trainers.common import Loop, Options, main
from tokenstore.trainers.common import evaluation_loader
from tokenstore.trainers.grain import MicrobatchDataset


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    loop = Loop(options)
    state = loop.load()
    # data
    dataset = MicrobatchDataset(options.plan, microbatch_size=options.microbatch, inside_step="continue")
    iterator = iter(ThreadPrefetchIterDataset(dataset, prefetch_buffer_size=options.workers + 1))
    if state:
        iterator.set_state(state)
    # end
    loop.train(iterator, iterator.get_state)
    loop.evaluate(evaluation_loader(options.eval_plan, microbatch_size=options.microbatch))


if __name__ == "__main__":
    main(__doc__, train)
