"""`tokenstore examples`."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import tokenstore
from tokenstore.commands.screen import fact_lines, screen, write_json
from tokenstore.errors import ConfigError
from tokenstore.paths import is_folder, is_there
from tokenstore.store.writing import make_folders, write_atomically
from tokenstore.text import safe

SOURCE = Path(tokenstore.__file__).parent / "examples"


def examples(
    folder: Path,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Copy the example training scripts to a folder, to run and to change.

    The scripts run offline, on CPUs and GPUs: plain PyTorch with torchrun, FSDP2, fine-tuning on conversations, evaluation, a
    mixture decided online, and one script per trainer in `trainers`. Run them in the folder, `data` first.
    `train_sft` needs the extra `chat`, and a script in `trainers` needs the library of its trainer.

    **Examples:**

    ```text
    tokenstore examples my-run
    cd my-run
    python -m data RUN                                          # two stores and a plan
    python -m train_gpt RUN                                     # kill it; the same command resumes it
    torchrun --nproc-per-node 2 -m train_gpt RUN --microbatch 2
    ```

    Parameters
    ----------
    folder
        A new or empty folder.
    as_json
        Print the copied files as one JSON object.
    """
    empty_folder(folder, "folder")
    copied = dict(_scripts())
    for name, text in copied.items():
        make_folders((folder / name).parent)
        write_atomically(folder / name, text.encode())
    if as_json:
        write_json({"folder": folder, "files": list(copied)})
        return 0
    fact_lines((f"{name:<34}", _summary(text)) for name, text in copied.items())
    screen().print(
        "\ntrain_sft needs the extra tokenstore[chat]; a script in trainers/ needs the library of its trainer",
        soft_wrap=True,
    )
    screen().print(f"next: cd {safe(str(folder))} && python -m data RUN && python -m train_gpt RUN", soft_wrap=True)
    return 0


def empty_folder(folder: Path, name: str) -> Path:
    """Create a folder, or accept one that is empty. Raises ConfigError, which begins with `name`, for anything else."""
    if is_there(folder) and not (is_folder(folder) and next(folder.iterdir(), None) is None):
        raise ConfigError(f"{name}: expected a new or empty folder, found {folder}; choose another name")
    make_folders(folder)
    return folder


def _scripts() -> Iterator[tuple[str, str]]:
    """(path in the copy, text) of each script. In a copy the scripts import each other, not those of the package."""
    paths = (path.relative_to(SOURCE) for path in SOURCE.rglob("*.py"))
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        if str(path) != "__init__.py" and path.parts[0] != "demo":
            yield str(path), (SOURCE / path).read_text("utf-8").replace("tokenstore.examples.", "")


def _summary(text: str) -> str:
    """The first sentence of a script's docstring."""
    return (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
