"""The page of a store: its summary, document lengths, and some documents token by token."""

from dataclasses import dataclass

from tokenstore.report.page import render
from tokenstore.store import Store
from tokenstore.views.decoding import Decoder
from tokenstore.views.documents import DocumentView, view_document
from tokenstore.views.store_summary import StoreSummary, summarize_store

_MOST_LISTED = 20  # inputs and largest documents to list


@dataclass(frozen=True)
class StoreReport:
    """The content of a store's page.

    Attributes:
        store: summary of the store.
        samples: evenly spaced documents.
        no_text: why the samples have no text; None if they have.
    """

    store: StoreSummary
    samples: tuple[DocumentView, ...]
    no_text: str | None


def store_report(store: Store, samples: int = 6, max_tokens: int = 512) -> StoreReport:
    """Summarize a store and decode some documents.

    Args:
        store: an open store.
        samples: number of documents to show, evenly spaced over the store.
        max_tokens: tokens to show from the start of each.
    Raises: CorruptionError: a file that is read is damaged.

    Example:
        >>> Path("web.html").write_text(store_page(store_report(open_store("stores/web"))))
    """
    decoder = Decoder.of(store)
    count = min(samples, len(store))
    numbers = [len(store) * (2 * i + 1) // (2 * count) for i in range(count)]
    shown = tuple(view_document(store, decoder, number, 0, max_tokens) for number in numbers)
    return StoreReport(summarize_store(store, _MOST_LISTED), shown, decoder.problem)


def store_page(report: StoreReport) -> str:
    """Render the report of a store as HTML."""
    return render("store.html", report=report, store=report.store)
