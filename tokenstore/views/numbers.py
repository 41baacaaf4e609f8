"""Numbers as people read them."""

from math import log10


def percentage(share: float) -> str:
    """A share as text with two digits, or as many as it needs not to read as nothing."""
    if 0 < share < 1e-6:
        return "<0.0001 %"
    return f"{100 * share:.2f} %" if share >= 0.0005 or share == 0 else f"{100 * share:.2g} %"


def size(num_bytes: float) -> str:
    """Bytes, in units of a thousand."""
    if num_bytes < 1000:
        return f"{num_bytes} byte{'s' if num_bytes != 1 else ''}"
    for unit in ("kB", "MB", "GB"):
        num_bytes /= 1000
        if num_bytes < 999.5:  # more is written as 1000
            return f"{num_bytes:.3g} {unit}"
    return f"{num_bytes / 1000:,.3g} TB" if num_bytes < 999_500 else f"{num_bytes / 1000:,.0f} TB"


def short(value: float, digits: int = 0) -> str:
    """A number for an axis: 0.5 (`digits` after the point), 2,000, 20 k, 1.5 M, 2e-06."""
    if 0 < abs(value) < 1e-4:
        return f"{value:.2g}"
    if abs(value) < 10_000:
        return f"{value:,.{digits if value else 0}f}"
    power = min(int(log10(abs(value)) + 1e-9) // 3, 5)
    return f"{value / 1000**power:.4g} {' kMGTP'[power]}"


def span(first: int, stop: int | None) -> str:
    """Steps, tokens or sequences `first` up to but without `stop`, as --steps A:B and slices of Python have them."""
    return f"{first:,}:" + ("" if stop is None else f"{stop:,}")
