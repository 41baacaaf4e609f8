"""A browser for the tests of pages."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium of the machine; nothing is downloaded."""
    from playwright.sync_api import sync_playwright  # only these tests need it

    path = shutil.which("chromium")
    assert path, "chromium: expected on PATH, found none; install it, or omit these tests"
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield opened
        opened.close()
