"""Documents on their way from the parts to the stores: with the store, the input and the record of each."""

from dataclasses import dataclass

import numpy as np

from tokenstore.builder.part import Block
from tokenstore.builder.split import HASH_WORDS

# Of a document: its key in the shuffled order, its number of tokens, its record, input and store, bytes of its id and metadata, hash of its
# content
PLACED = np.dtype(
    [
        ("key", "<u8"),
        ("length", "<i8"),
        ("record", "<i8"),
        ("file", "<i8"),
        ("store", "<i4"),
        ("name_bytes", "<i4"),
        ("metadata_bytes", "<i4"),
        ("content", "<u8", HASH_WORDS),
    ]
)


@dataclass(frozen=True)
class Placed(Block):
    """Some documents, with rows of PLACED."""

    def take(self, order: np.ndarray) -> "Placed":
        """The documents with the numbers `order`, int64[m], in that order."""
        lengths = self.rows["length"]
        starts, taken = np.cumsum(lengths) - lengths, lengths[order]
        places = np.repeat(starts[order] - (np.cumsum(taken) - taken), taken) + np.arange(int(taken.sum()))
        numbers = order.tolist()
        return Placed(
            self.rows[order],
            self.tokens[places],
            None if self.mask is None else self.mask[places],
            [self.names[i] for i in numbers],
            [self.metadata[i] for i in numbers],
        )


def joined(parts: list[Placed]) -> Placed:
    """All documents of one or more parts, in order."""
    masks = [part.mask for part in parts if part.mask is not None]
    return Placed(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.tokens for part in parts]),
        np.concatenate(masks) if masks else None,
        [name for part in parts for name in part.names],
        [row for part in parts for row in part.metadata],
    )
