"""PlanConfig: describes the data of a run, from plan.yaml or from Python. All invalid fields are reported at once."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, Unpack

from tokenstore.errors import ConfigError
from tokenstore.planning.contradictions import contradictions
from tokenstore.planning.plan_fields import PlanFields, PlanValues
from tokenstore.planning.plan_file import read_yaml, write_yaml
from tokenstore.store.remote import is_url


@dataclass(frozen=True, init=False)
class PlanConfig(PlanValues):
    """The configuration of a run's data. It is immutable, and `Plan` works on its own copy.

    A path may be the URL of a store. Other paths are relative to the working directory. In a file read by `load`
    they are relative to that file, and `~` is the home directory.

    Attributes:
        sequence_length: tokens per sequence, at most 2**24.
        global_batch_size: sequences per step over all ranks, at most 2**24.
        sources: the sources by name. The order of the run depends on the names, not on the paths. Give a weight to every
            source (here or in a stage) or to none. Without weights each source takes part in proportion to its number
            of sequences, so that all epochs end together. Weight 0 declares a source without using it.
        packing: how documents become sequences. `best_fit` packs whole documents, differently in every epoch, and cuts
            only documents longer than a sequence. `concat` cuts the concatenated documents into windows, at a different
            offset in every epoch. `none` puts one document (or one part of a long document) in each sequence; without
            shuffle the longest document comes first.
        temperature: only without weights. Each source's weight is (sequences per epoch) ** (1 / temperature). 1, the
            default, is proportional; higher values are more even.
        seed: any integer in -2**127..2**127.
        shuffle: False reads every source in its own order.
        num_steps: the number of steps, or `first_exhausted` or `all_exhausted`: one epoch, until the first or the last
            source ends. Default: endless.
        on_exhausted: what happens when a source would exceed its max_epochs: `error` (the plan is rejected), `drop`
            (the other sources continue without it) or `stop` (the plan ends). Default: `error`.
        last_batch: a last step that is not full is omitted (`drop`) or filled with empty rows (`pad`). Default: `pad`
            with packing none, otherwise `drop`.
        stages: changes of weights and batch size, in order of from_step.
        batch_ramp: `{to: 1024, steps: 500, multiple_of: 64}`: changes the batch size gradually, starting at step 0.
        skip_steps: [start, stop) ranges of steps that are not trained on.
        cross_document_targets: predict the first token of a document from the last token of the document before it.
            Only valid with packing `concat`.
        align: each piece of a document begins in its row at a multiple of this number of tokens, with padding after the
            piece before it. It must divide sequence_length. Context parallelism requires 2 x its number of ranks. Not
            valid with packing `concat`. Default: pieces follow one another.
        balance: `attention` deals the rows of a step to ranks so that the ranks of a microbatch have about equally much
            attention to compute. The content of every step is the same. `{attention: a, linear: b}` also sets what a row
            costs, as positive integers; the default is a = 1, b = 0. Default: rows are dealt in order.

    Raises:
        ConfigError: a field is unknown, missing or invalid, or two fields contradict each other. The message lists
            all invalid fields, or if there are none, all contradictions.

    Example:
        >>> PlanConfig(sequence_length=2048, global_batch_size=64, sources={"web": {"path": "stores/web"}})
    """

    def __init__(self, /, **fields: Unpack[PlanFields]):
        super().__init__(**fields)
        if wrong := contradictions(self):
            raise ConfigError("plan: " + "; ".join(wrong))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read the configuration in a YAML or JSON file. Paths in it are relative to the file's directory.

        Raises:
            ConfigError: the file cannot be read, is not YAML, or its fields are invalid. The message names the file.
        """
        path = Path(path)
        fields = read_yaml(path)
        if isinstance(sources := fields.get("sources"), dict):
            fields["sources"] = {name: _moved(source, path.parent) for name, source in sources.items()}
        try:
            return cls(**fields)
        except ConfigError as error:
            raise ConfigError(f"{error} ({path})") from None

    def save(self, path: str | Path, comment: str = "") -> None:
        """Write the configuration to a YAML file that `load` reads, replacing the file atomically.

        Args:
            path: the file. Paths of stores inside its folder are written relative to it.
            comment: text of a comment in its first line.

        Raises:
            ConfigError: the file cannot be written.
        """
        write_yaml(Path(path), self.changed_fields(), comment)


def _moved(source: Any, folder: Path) -> Any:
    """A source read from a file in `folder`, with its path made relative to here. Invalid sources are left unchanged."""
    if not isinstance(source, dict) or not isinstance(source.get("path"), str):
        return source
    if is_url(source["path"]):
        return source
    path = Path(source["path"])
    with contextlib.suppress(RuntimeError):  # `~name` of an unknown user is an ordinary path, as in a shell
        path = path.expanduser()
    return {**source, "path": str(folder / path)}
