"""The pages of the kept results: every row, its bars and its p-values."""

import re
from pathlib import Path

import pytest

from benches.page import README, Section, kept, main, markdown, page
from benches.scenes import Row, show
from tests.support.report_pages import check_page


def test_page_shows_every_row_that_was_kept() -> None:
    sections = list(kept())
    found = check_page(page(sections)).text
    assert {"throughput", "scale", "quality"} <= {section.name for section in sections}
    for row in (row for section in sections for row in section.rows):
        assert row.claim in found
        assert row.value in found
        assert all(show(value, row.unit) in found for value in row.bars.values())


def test_bars_are_in_proportion() -> None:
    rows = [Row("cost", "4 us", "flat", "", {"10^4": 1.0, "10^6": 4.0}, "us"), Row("none", "0", "", "", {"10^4": 0.0})]
    source = page([Section("scale", "a machine", rows, [])])
    assert re.findall(r"width:([\d.]+)%", source.split("<tbody>", 1)[1]) == ["25.00", "100.00"]


def test_chances_are_drawn_beside_even_ones() -> None:
    sections = [section for section in kept() if section.name == "quality"]
    assert [len(section.charts) for section in sections] == [10]
    for _, chart in sections[0].charts:
        assert len(chart.points["values"][0]) == len(chart.points["targets"][0]) == 50
    assert page(sections).count("<svg") == 10


def test_readme_is_what_the_generator_makes() -> None:
    assert README.read_text() == markdown(kept()), "run `python -m benches.page --markdown`"


def test_markdown_has_one_cell_per_column() -> None:
    rows = [Row("a | b", "1 *us*", "-", "c_d", {"10^4": 1.0}, "us")]
    assert "| a \\| b | 1 \\*us\\* |  | c\\_d; 10^4: 1 us |" in markdown([Section("scale", "a machine", rows, [])])


@pytest.mark.parametrize("options", [(), ("--markdown",)], ids=["html", "markdown"])
def test_only_its_own_pages_are_replaced(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Another file is kept, unless --overwrite is given."""
    file = tmp_path / "page"
    main([str(file), *options])
    made = file.read_bytes()
    main([str(file), *options])
    file.write_text("a file of the user")
    with pytest.raises(SystemExit):
        main([str(file), *options])
    assert file.read_text() == "a file of the user"
    main([str(file), *options, "--overwrite"])
    assert file.read_bytes() == made
