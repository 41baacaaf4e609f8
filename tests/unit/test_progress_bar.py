"""Lines of the progress bar: a speed and an estimated end only where they are known, of this run alone."""

import pytest

from tokenstore.commands import progress_bar


def lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, *shown: tuple[float, int]) -> list[str]:
    """What is printed where (seconds, bytes done of 1,000) are shown, one after the other."""
    now = 0.0
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: now)
    monkeypatch.setattr(progress_bar, "_LINE_SECONDS", 0)
    with progress_bar.meter("building") as meter:
        for seconds, done in shown:
            now = seconds
            meter.show(done, 1000, (done, "B"))
    return capsys.readouterr().err.splitlines()


def test_at_the_start_there_is_no_end_in_sight(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """Nothing is done yet, so no time left is printed; later it is what is left at the speed so far."""
    assert lines(monkeypatch, capsys, (5, 0), (9, 0), (15, 100)) == [
        "building: 0 %",
        "building: 0 %",
        "building: 10 %, 10B/s, 1:30 left",
    ]


def test_what_an_earlier_run_did_is_no_speed_of_this_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """The clock starts with the first bytes seen; those that were there already do not count."""
    assert lines(monkeypatch, capsys, (60, 800), (70, 900)) == ["building: 80 %", "building: 90 %, 10B/s, 0:10 left"]
