"""A store as a page: what it is, how long its documents are, and some of them, token by token."""

from dataclasses import dataclass

from tokenstore.report.page import render
from tokenstore.store import Store
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import DocumentView, view_document
from tokenstore.views.store_summary import StoreSummary, summarize_store

_MOST_LISTED = 20  # inputs, and largest documents


@dataclass(frozen=True)
class StoreReport:
    """What the page shows. `samples` are evenly spread; `no_text`: why they have no text, None where they have."""

    store: StoreSummary
    samples: tuple[DocumentView, ...]
    no_text: str | None


def store_report(store: Store, samples: int = 6, max_tokens: int = 512) -> StoreReport:
    """Look at a store.

    Args:
        store: an open store.
        samples: how many documents to show, evenly spread over the store.
        max_tokens: how many of the first tokens of each.
    Raises: CorruptionError: what is read is damaged.
    """
    decoder = Decoder.of(store)
    count = min(samples, len(store))
    numbers = [len(store) * (2 * i + 1) // (2 * count) for i in range(count)]
    shown = tuple(view_document(store, decoder, number, 0, max_tokens) for number in numbers)
    return StoreReport(summarize_store(store, _MOST_LISTED), shown, decoder.problem)


def store_page(report: StoreReport) -> str:
    """The page of it, as HTML."""
    return render("store.html", report=report, store=report.store)
