"""Train a plan with torchdata.nodes, which prefetches in threads.

python -m tokenstore.examples.trainers.torchdata_nodes DATA RUN
torchrun --nproc-per-node 2 -m tokenstore.examples.trainers.torchdata_nodes DATA RUN
"""

from torchdata.nodes import Loader, Prefetcher

from tokenstore import TokenLoader
from tokenstore.examples.trainers.common import Loop, Options, main
from tokenstore.trainers.common import evaluation_loader
from tokenstore.trainers.torchdata import TokenNode


def train(options: Options) -> None:
    """Train to the end of the plan, from the last checkpoint if there is one, and evaluate."""
    loop = Loop(options)
    state = loop.load()
    # data
    tokens = TokenLoader(options.plan, microbatch_size=options.microbatch, inside_step="continue")
    loader = Loader(Prefetcher(TokenNode(tokens), options.workers + 1))
    if state:
        loader.load_state_dict(state)
    # end
    loop.train(loader, loader.state_dict)
    loop.evaluate(evaluation_loader(options.eval_plan, microbatch_size=options.microbatch))


if __name__ == "__main__":
    main(__doc__, train)
