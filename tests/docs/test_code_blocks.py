"""Every code block of README.md and docs/ runs as written, and prints what the page shows."""

import shutil
from pathlib import Path

import pytest

from tests.support.code_blocks import blocks_of, check_output, run_page
from tests.support.processes.command_lines import ROOT
from tests.support.servers.range_server import RangeServer

pytestmark = pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec.. is deprecated")  # what Lightning calls
FIRST_STEPS = ROOT / "docs" / "first-steps.md"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "yaml", "bash", "console", "text"}
NOT_RUN = 34


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_CODE = [page for page in PAGES if any(block.language != "text" for block in blocks_of(page.read_text()))]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that First steps leaves, with which the other pages begin."""
    folder = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        run_page(FIRST_STEPS.read_text(), folder)
    return folder


@pytest.fixture
def bucket(project: Path, tmp_path: Path, range_server: RangeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stores of First steps in s3://bucket, for the page about object storage."""
    for name in ("manual", "code"):
        range_server.add_folder(f"bucket/{name}", project / "stores" / name)
    monkeypatch.setenv("TOKENSTORE_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_code_blocks_of_a_page_run(page: Path, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, in the folder of First steps; each output that is shown is compared."""
    if page == FIRST_STEPS:
        return  # `project` has run it
    folder = shutil.copytree(project, tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    text = page.read_text()
    assert run_page(text, folder) == sum(not block.reason and block.language != "text" for block in blocks_of(text))


def test_few_blocks_do_not_run() -> None:
    """A block that cannot run says why. Their number is written here, so that a new one is noticed."""
    blocks = [(page, block) for page in PAGES for block in blocks_of(page.read_text())]
    assert {block.language for _, block in blocks} <= LANGUAGES
    marked = [f"{name_of(page)}:{block.line}: {block.reason}" for page, block in blocks if block.reason]
    assert len(marked) == NOT_RUN, "\n".join(marked)


def test_a_wrong_output_is_found() -> None:
    with pytest.raises(AssertionError, match="expected the output"):
        check_output("3 documents", "4 documents")
    check_output("a ... c\n...\nend", "a b c\nmore\nlines\nend\n")


def test_a_block_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_page("# Page\n\n```python\n1 / 0\n```\n", tmp_path)
    assert "python block at line 3" in caught.value.__notes__[0]
