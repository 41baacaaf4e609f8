"""`tokenstore demo`."""

import tempfile
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tokenstore.commands.examples import empty_folder


def demo(*, folder: Annotated[Path | None, Parameter(negative=())] = None) -> int:
    """Show a training run that is killed and resumed exactly, in about a minute. Needs no network and no GPU.

    The demo builds two stores from the source of Python's standard library, trains a small model, kills it with `kill -9`,
    resumes it on two processes instead of one, and compares every row of every batch with an uninterrupted run.

    **Examples:**

    ```text
    tokenstore demo
    tokenstore demo --folder demo      # then: tokenstore plan demo/plan.yaml
    ```

    Parameters
    ----------
    folder
        Keep the stores, the plan, the logs and the checkpoints in this new or empty folder. Default: a temporary folder,
        which is removed.
    """
    from tokenstore.examples.demo.run import run

    if folder is not None:
        run(empty_folder(folder, "--folder"))
        return 0
    with tempfile.TemporaryDirectory(prefix="tokenstore-demo-") as temporary:
        run(Path(temporary))
    return 0
