"""Charts, against a slow reading of what is drawn: ticks, paths, values at a point; numbers as text."""

import re
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tokenstore.report.charts import SIZE, Mark, label_places, line_chart, ticks
from tokenstore.report.plan_page import LINES, _epochs_chart, _mixture_chart
from tokenstore.text import percentage, short, size
from tokenstore.views.plan_curves import MixturePoint

values = st.one_of(st.just(0.0), st.floats(1e-9, 1e9), st.integers(0, 1000).map(float))
steps = st.lists(st.integers(1, 1 << 48), min_size=1, max_size=30, unique=True).map(sorted)


def read(path: str) -> list[tuple[int, int]]:
    """The corners of a path, in order."""
    corners: list[tuple[int, int]] = []
    for command, numbers in re.findall(r"([MLHV])([\d .-]*)", path):
        given = [int(each) for each in numbers.split()]
        for first in range(0, len(given), 1 if command in "HV" else 2):
            if command == "H":
                corners.append((given[first], corners[-1][1]))
            elif command == "V":
                corners.append((corners[-1][0], given[first]))
            else:
                corners.append((given[first], given[first + 1]))
    return corners


class TestTicks:
    @given(most=st.floats(1e-12, 1e24), percent=st.booleans(), whole=st.booleans())
    @example(1, False, True)
    @example(2, False, True)
    @example(12_345.0, False, False)
    @example(0.999999, True, False)
    def test_ticks_are_round_and_even(self, most: float, percent: bool, whole: bool) -> None:
        """From 0 % to at most 100 %, at the positions of their numbers, with distinct texts."""
        if percent:
            most = min(most, 1.0)
        made = ticks(most, percent=percent, whole=whole)
        places = [tick.percent for tick in made]
        assert places[0] == 0
        assert places[-1] <= 100.000001
        assert (1 if whole and most < 1 else 2) <= len(places) <= 11
        gaps = [b - a for a, b in pairwise(places)]
        assert gaps == pytest.approx([gaps[0]] * len(gaps) if gaps else [])
        if not percent or most > 1e-4:  # the largest share of a chart is never smaller
            assert len({tick.text for tick in made}) == len(made)

    @given(most=st.integers(1, 1 << 48))
    def test_ticks_of_steps_are_whole(self, most: int) -> None:
        """Steps are integers."""
        for tick in ticks(most, whole=True):
            number = tick.percent * most / 100
            assert number == pytest.approx(round(number))
            if number < 9999:
                assert tick.text == f"{round(number):,}"

    @pytest.mark.parametrize(
        ("most", "percent", "texts"),
        [
            (1.0, True, "0 %|20 %|40 %|60 %|80 %|100 %"),
            (0.0525, True, "0 %|2 %|4 %"),
            (0.011, True, "0.0 %|0.5 %|1.0 %"),
            (3000, False, "0|1,000|2,000|3,000"),
            (1_234_567, False, "0|500 k|1 M"),
            (2.1, False, "0|0.5|1.0|1.5|2.0"),
            (0.00001, False, "0|2e-06|4e-06|6e-06|8e-06|1e-05"),
        ],
    )
    def test_texts_of_ticks(self, most: float, percent: bool, texts: str) -> None:
        """Round numbers with as few digits as needed."""
        assert "|".join(tick.text for tick in ticks(most, percent=percent)) == texts


class TestPaths:
    @given(steps=steps, data=st.data())
    def test_stairs_hold_the_values(self, steps: list[int], data: st.DataObject) -> None:
        """Between two steps, the later value is drawn."""
        row = data.draw(st.lists(values, min_size=len(steps), max_size=len(steps)))
        chart = line_chart(steps, {"a": row}, {"a": 0}, stairs=True)
        top = 1.05 * (max(row) or 1)
        places = [0, *(round(SIZE * step / steps[-1]) for step in steps)]
        heights = [SIZE - round(SIZE * value / top) for value in row]
        corners = read(chart.lines[0].path)
        assert corners[0] == (0, heights[0])
        assert corners[-1] == (SIZE, heights[-1])
        drawn = {(x, y) for (a, y), (b, z) in pairwise(corners) for x in range(a, b) if y == z}
        assert drawn == {
            (x, y) for (a, b), y in zip(pairwise(places), heights, strict=True) for x in range(a, b)
        }  # fmt: skip
        assert all(x == y or z == w for (x, z), (y, w) in pairwise(corners))

    @given(steps=steps, data=st.data())
    def test_lines_go_through_the_values(self, steps: list[int], data: st.DataObject) -> None:
        """They start at the origin; all lines and targets fit into the height."""
        rows = {n: data.draw(st.lists(values, min_size=len(steps), max_size=len(steps))) for n in "ab"}
        targets = {n: data.draw(st.lists(values, min_size=len(steps), max_size=len(steps))) for n in "ab"}
        chart = line_chart(steps, rows, {"a": 3, "b": 1}, targets)
        top = 1.05 * (max(v for row in [*rows.values(), *targets.values()] for v in row) or 1)
        assert [(line.name, line.colour) for line in chart.lines] == [("a", 3), ("b", 1)]
        for line in chart.lines:
            for path, row in (line.path, rows[line.name]), (line.target, targets[line.name]):
                first, *corners = read(path)
                assert first == (0, SIZE)
                assert [x for x, _ in corners] == [round(SIZE * step / steps[-1]) for step in steps]
                assert [y for _, y in corners] == pytest.approx([SIZE * (1 - v / top) for v in row], abs=1)
                assert all(0 <= y <= SIZE for _, y in corners)

    def test_points_have_all_values_as_text(self) -> None:
        """Shares are percentages of at most 100 %; names are safe text."""
        made = line_chart([2, 4], {"a\u202e\x7f": [1.0, 0.25]}, {"a\u202e\x7f": 0}, stairs=True, percent=True)
        assert made.points == {
            "steps": [2, 4],
            "names": [r"a\u202e\x7f"],
            "values": [["100.00 %", "25.00 %"]],
            "targets": [],
        }
        assert made.lines[0].path == f"M0 0H500V{SIZE - 250}H{SIZE}"
        assert made.lines[0].target == ""
        reported = line_chart([1, 2, 3], {"a": [0, 0.0000123, 1234.5678]}, {"a": 0}).points["values"]
        assert reported == [["0.000", "1.2e-05", "1,234.568"]]

    @given(ends=st.lists(st.floats(0, 100), min_size=1, max_size=9))
    def test_labels_do_not_overlap(self, ends: list[float]) -> None:
        """Labels keep the order of the lines, inside the chart; a single label is at the end of its line."""
        places = label_places(ends)
        order = sorted(range(len(ends)), key=lambda i: (ends[i], -i))
        assert all(places[b] - places[a] >= 7 - 1e-9 for a, b in pairwise(order))
        assert all(0 <= place <= 100 for place in places)
        assert label_places(ends[:1]) == ends[:1]

    def test_skipped_steps_are_marked(self) -> None:
        """A single step among very many is still visible; steps after the last one are not marked."""
        skips = [(10, 20), (99_999, 200_000), (500_000, 500_001)]
        chart = line_chart([50, 100_000], {"a": [1, 1]}, {"a": 0}, skips=skips)
        assert chart.skipped == (Mark(0, 2), Mark(998, 2))
        assert line_chart([100], {"a": [1]}, {"a": 0}, skips=[(25, 50)]).skipped == (Mark(250, 250),)

    def test_a_single_zero_is_drawn(self) -> None:
        """A line at the bottom, under an axis up to 1."""
        made = line_chart([1], {"a": [0.0]}, {"a": 0})
        assert read(made.lines[0].path) == [(0, SIZE), (SIZE, SIZE)]
        assert made.y_ticks[-1].text == "1.0"
        assert [tick.text for tick in made.x_ticks] == ["0", "1"]


def points_of(names: list[str]) -> list[MixturePoint]:
    share = dict.fromkeys(names, 1 / len(names))
    epochs = {name: float(number) for number, name in enumerate(names)}
    return [MixturePoint(5, dict.fromkeys(names, 1), epochs, share, share, share)]


class TestOthers:
    def test_few_sources_have_a_line_each(self) -> None:
        """With the same colours in both charts."""
        colours = {name: number for number, name in enumerate("abcdefgh")}
        for chart in (
            _mixture_chart(points_of([*"abcdefgh"]), colours),
            _epochs_chart(points_of([*"abcdefgh"]), colours),
        ):
            assert {line.name: line.colour for line in chart.lines} == colours

    @pytest.mark.parametrize("taken", ["a", "292 others", "(292 others)", "most repeated of 292 others"])
    def test_many_sources_share_one_line(self, taken: str) -> None:
        """It shows the sum of their shares and the most of their epochs; its name is not that of a source."""
        names = [taken, "(292 others)x", *(f"s{i}" for i in range(298))]
        names += ["292 others"] * (taken == "(292 others)")
        names = names[:300]
        colours = {name: min(number, LINES) for number, name in enumerate(names)}
        for chart in _mixture_chart(points_of(names), colours), _epochs_chart(points_of(names), colours):
            assert len({line.name for line in chart.lines}) == len(chart.lines) == LINES + 1
            assert [line.colour for line in chart.lines] == [*range(LINES), LINES]
            assert "292 others" in chart.lines[-1].name
        assert _mixture_chart(points_of(names), colours).points["values"][-1] == [percentage(292 / 300)]
        assert _epochs_chart(points_of(names), colours).points["values"][-1] == ["299.000"]

    def test_one_other_keeps_its_name(self) -> None:
        """Not "1 others"."""
        colours = {f"s{i}": min(i, LINES) for i in range(LINES + 1)}
        assert _epochs_chart(points_of([*colours]), colours).lines[-1].name == f"s{LINES}"


class TestNumbers:
    @pytest.mark.parametrize(
        ("number", "text"),
        [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1000, "1 kB"), (1234, "1.23 kB"), (999_499, "999 kB"),
         (999_999, "1 MB"), (184_321, "184 kB"), (10**9, "1 GB"), (999_999_999_999, "1 TB"), (12_345 * 10**12, "12,345 TB")],
    )  # fmt: skip
    def test_sizes(self, number: int, text: str) -> None:
        """In decimal units, without an exponent."""
        assert size(number) == text

    @given(number=st.integers(0, 1 << 60))
    def test_sizes_have_three_digits(self, number: int) -> None:
        """The text is within rounding of the number."""
        text, unit = size(number).split()
        power = ["byte", "kB", "MB", "GB", "TB"].index(unit.removesuffix("s"))
        assert float(text.replace(",", "")) * 1000**power == pytest.approx(number, rel=0.006)

    @pytest.mark.parametrize(
        ("share", "text"),
        [(0, "0.00 %"), (1, "100.00 %"), (0.5, "50.00 %"), (0.0004, "0.04 %"), (0.0000123, "0.0012 %"), (1e-9, "<0.0001 %")],
    )  # fmt: skip
    def test_small_shares_do_not_read_as_zero(self, share: float, text: str) -> None:
        """They get more digits."""
        assert percentage(share) == text

    @given(value=st.floats(0, 1e18))
    def test_short_numbers(self, value: float) -> None:
        """At most a few characters for any number."""
        assert len(short(value)) <= 10
