"""Train a plan with the StatefulDataLoader of torchdata and its worker processes.

    python -m tokenstore.examples.trainers.stateful_dataloader DATA RUN

Its state has a position per worker process, so a run resumes with the same number of ranks and workers.
"""

from torchdata.stateful_dataloader import StatefulDataLoader

from tokenstore import TokenDataset
from tokenstore.examples.trainers.common import Loop, Options, main
from tokenstore.trainers.common import evaluation_loader


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    loop = Loop(options)
    state = loop.load()
    # data
    dataset = TokenDataset(options.plan, microbatch_size=options.microbatch, inside_step="continue")
    loader = StatefulDataLoader(dataset, batch_size=None, num_workers=options.workers)
    if state:
        loader.load_state_dict(state)
    # end
    loop.train(loader, loader.state_dict)
    loop.evaluate(evaluation_loader(options.eval_plan, microbatch_size=options.microbatch))


if __name__ == "__main__":
    main(__doc__, train)
