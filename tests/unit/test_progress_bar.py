"""Lines of the progress bar: rate and remaining time of this run, only once they are known."""

import pytest

from tokenstore.commands import progress_bar


def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *shown: tuple[float, int]) -> list[str]:
    """The lines printed for these (seconds, bytes done of 1,000), in order."""
    now = 0.0
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now)
    monkeypatch.setattr(progress_bar, "_LINE_SECONDS", 0)
    with progress_bar.meter("building") as meter:
        for seconds, done in shown:
            now = seconds
            meter.show(done, 1000, (done, "B"))
    return capsys.readouterr().err.splitlines()


def test_no_remaining_time_before_any_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Later it is the rest at the rate so far."""
    assert lines(monkeypatch, capsys, (5, 0), (9, 0), (15, 100)) == [
        "building: 0 %",
        "building: 0 %",
        "building: 10 %, 10B/s, 1:30 left",
    ]


def test_work_of_an_earlier_run_does_not_count_for_the_rate(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The clock starts with the first report."""
    assert lines(monkeypatch, capsys, (60, 800), (70, 900)) == ["building: 80 %", "building: 90 %, 10B/s, 0:10 left"]
