"""Charts: whole without a script, true to their numbers, readable by all."""

import re
import xml.etree.ElementTree as ET
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from django.conf import settings
from django.template import engines
from hypothesis import given
from hypothesis import strategies as st

from portal import charts
from portal.chart_axes import text_width
from portal.charts import Series

SVG = "{http://www.w3.org/2000/svg}"


def pictures(chart: charts.Chart) -> list[ET.Element]:
    return list(ET.fromstring(f'<g xmlns="http://www.w3.org/2000/svg">{chart.svg}</g>'))


def of_class(picture: ET.Element, css: str) -> list[ET.Element]:
    return [element for element in picture.iter() if css in element.get("class", "").split()]


def test_a_bar_is_as_long_as_its_value() -> None:
    chart = charts.bars("Hours", ["a", "b"], [Series("used", [10, 20])], "GPU-hours")
    for picture in pictures(chart):
        first, second = (float(bar.get("height", "0")) for bar in of_class(picture, "bar"))
        assert second == pytest.approx(2 * first, abs=0.2) and first > 20


def test_stacked_bars_are_drawn_on_top_of_each_other() -> None:
    chart = charts.bars("Hours", ["a"], [Series("used", [10]), Series("idle", [5], "idle")], stacked=True)
    for picture in pictures(chart):
        used, idle = of_class(picture, "bar")
        assert float(idle.get("y", "0")) + float(idle.get("height", "0")) == pytest.approx(
            float(used.get("y", "0")), abs=0.2
        )


def test_a_mark_stands_where_a_bar_of_its_value_would_end() -> None:
    chart = charts.bars("Hours", ["a", "b"], [Series("used", [10, 20])], mark=Series("planned", [20, None]))
    for picture in pictures(chart):
        _, longer = of_class(picture, "bar")
        (mark,) = of_class(picture, "should")
        end = float(longer.get("x", "0")) + float(longer.get("width", "0"))
        assert float(mark.get("d", "")[1:].split()[0]) == pytest.approx(end, abs=0.2)
    assert [row[-1] for row in chart.rows] == ["20", "–"]
    assert chart.mark == "planned" and len(chart.legend) == 0


def test_names_that_do_not_fit_beside_one_another_get_horizontal_bars() -> None:
    chart = charts.bars("Hours", [f"a person with a long name {n}" for n in range(5)], [Series("used", range(1, 6))])
    for picture in pictures(chart):
        widths = [float(bar.get("width", "0")) for bar in of_class(picture, "bar")]
        assert widths == sorted(widths) and widths[0] < widths[-1]


def test_a_gap_in_the_values_is_a_gap_in_the_line() -> None:
    (path, *_) = of_class(pictures(charts.lines("x", [1, 2, 3, 4], [Series("a", [1, 2, None, 4])]))[0], "line")
    assert path.get("d", "").count("M") == 2


def test_a_line_may_be_drawn_on_over_gaps_and_ends_where_its_values_end() -> None:
    values = [5.0 if x % 2 else None for x in range(60)]
    chart = charts.lines("L", range(100), [Series("s", [*values, *[None] * 40])], bridge_gaps=True)
    for picture in pictures(chart):
        (path,), (dot,) = of_class(picture, "line"), of_class(picture, "dot")
        assert path.get("d", "").count("M") == 1
        assert path.get("d", "").endswith(f"L{dot.get('cx')} {dot.get('cy')}")


def test_each_picture_has_a_name_a_description_and_a_table_beside_it() -> None:
    chart = charts.lines(
        "GPUs in use", [datetime(2026, 11, 1, tzinfo=UTC)], [Series("alice", [3])], "GPUs", desc="Alice holds three."
    )
    for picture in pictures(chart):
        names = {element.get("id"): element.text for element in picture.iter() if element.get("id")}
        assert [names[key] for key in picture.get("aria-labelledby", "").split()] == [
            "GPUs in use",
            "Alice holds three.",
        ]
    html = engines["django"].from_string("{% chart chart %}").render({"chart": chart})
    assert '<th scope="col" class="num">alice (GPUs)</th>' in html and "01 Nov 2026, 00:00" in html
    assert "style=" not in html and html.count("<script") == html.count('<script type="application/json"') == 1


def test_names_from_people_cannot_become_markup() -> None:
    evil = "<script>alert(1)</script>"
    chart = charts.bars(evil, [evil], [Series(evil, [1]), Series("b", [2])], evil, desc=evil)
    html = engines["django"].from_string("{% chart chart %}").render({"chart": chart})
    assert "<script" not in html + charts.sparkline([1, 2], evil)


def test_seconds_are_shown_as_durations() -> None:
    chart = charts.bars("Waiting", ["a"], [Series("mean", [7500])], "seconds")
    assert chart.rows == (("a", "2 h 5 min"),)


def test_midnights_are_marked_by_the_day() -> None:
    start = datetime(2026, 11, 1, 3, tzinfo=UTC)
    chart = charts.lines("x", [start + timedelta(hours=n) for n in range(72)], [Series("a", [1] * 72)])
    texts = [element.text for element in pictures(chart)[0].iter(f"{SVG}text")]
    assert "02 Nov" in texts and "12:00" in texts


def test_missing_values_raise_at_once() -> None:
    with pytest.raises(ValueError, match="1 values for 2 labels"):
        charts.bars("x", ["a", "b"], [Series("used", [1])])


numbers = st.none() | st.floats(min_value=-1e9, max_value=1e9)


@given(st.lists(numbers, max_size=50), st.booleans(), st.booleans(), st.sampled_from(["", "GPU-hours", "seconds"]))
def test_any_values_make_a_picture_whose_marks_stay_inside(
    values: list[float | None], flag: bool, days: bool, unit: str
) -> None:
    labels = [date(2026, 1, 1) + timedelta(days=n) for n in range(len(values))]
    words = labels if days else [f"n{n}" for n in range(len(values))]
    for chart in (
        charts.bars("x", words, [Series("a", values), Series("b", [1] * len(values))], unit, horizontal=flag),
        charts.lines("x", labels, [Series("a", values)], unit, step=flag),
    ):
        for picture in pictures(chart):
            _, _, width, height = map(float, picture.get("viewBox", "").split())
            for bar in of_class(picture, "bar"):
                x, y, w, h = (float(bar.get(name, "0")) for name in ("x", "y", "width", "height"))
                assert x >= -0.2 and x + w <= width + 0.2 and y >= -0.2 and y + h <= height + 0.2
            for dot in of_class(picture, "dot"):
                assert 0 <= float(dot.get("cx", "0")) <= width and 0 <= float(dot.get("cy", "0")) <= height


def spans(picture: ET.Element) -> list[tuple[float, float, str]]:
    """Return where each text of the bottom row begins and ends."""
    bottom = max((float(text.get("y", "0")) for text in picture.iter(f"{SVG}text")), default=0.0)
    found = []
    for text in picture.iter(f"{SVG}text"):
        if float(text.get("y", "0")) == bottom and text.text:
            x, width = float(text.get("x", "0")), text_width(text.text)
            left = {"start": x, "middle": x - width / 2, "end": x - width}[text.get("text-anchor", "start")]
            found.append((left, left + width, text.text))
    return found


def test_the_label_of_a_tick_at_the_right_edge_is_whole() -> None:
    start = datetime(2026, 11, 27, 12, 16, tzinfo=UTC)
    times = [start + timedelta(minutes=6 * n) for n in range(118)]
    assert times[-1].strftime("%H:%M") == "23:58"
    chart = charts.lines(
        "Utilisation", [*times, start.replace(hour=0, minute=0) + timedelta(days=1)], [Series("a", [1] * 119)]
    )
    for picture in pictures(chart):
        width = float(picture.get("viewBox", "").split()[2])
        _, right, text = max(spans(picture))
        assert text == "28 Nov" and right <= width


@given(st.integers(0, 5_000_000), st.integers(1, 5_000_000), st.integers(1, 60))
def test_labels_of_times_are_whole_and_apart(minute: int, seconds: int, count: int) -> None:
    start = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(minutes=minute)
    times = [start + timedelta(seconds=seconds * n / count) for n in range(count + 1)]
    days = [start.date() + timedelta(days=n) for n in range(count)]
    for chart in (
        charts.lines("x", times, [Series("a", [1.0] * len(times))]),
        charts.bars("x", days, [Series("a", [1.0] * len(days))]),
    ):
        for picture in pictures(chart):
            found, width = sorted(spans(picture)), float(picture.get("viewBox", "").split()[2])
            assert all(left >= 0 and right <= width for left, right, _ in found)
            assert all(right <= left for (_, right, _), (left, _, _) in pairwise(found))


def test_lines_come_with_the_same_values_for_scripts() -> None:
    start = datetime(2026, 11, 1, tzinfo=UTC)
    chart = charts.lines(
        "Use",
        [start, start + timedelta(minutes=1)],
        [Series("a", [1, None])],
        "%",
        marks=[(start, "2 → 4")],
        axis_range=(0, 100),
    )
    assert chart.plot is not None
    assert (chart.plot["kind"], chart.plot["x"]) == ("time", [start.timestamp(), start.timestamp() + 60])
    assert chart.plot["series"] == [{"name": "a", "tone": "data-1", "values": [1, None]}]
    assert chart.plot["marks"] == [{"x": start.timestamp(), "text": "2 → 4"}]
    assert charts.bars("Use", ["x"], [Series("a", [1])]).plot is None


def test_labels_of_marks_are_whole_and_do_not_touch() -> None:
    marks = [(x, f"{x} → {x + 1} GPUs") for x in (0, 1, 2, 50, 99, 100)]
    for picture in pictures(charts.lines("x", range(101), [Series("a", [1.0] * 101)], marks=marks)):
        width = float(picture.get("viewBox", "").split()[2])
        texts = [each for each in picture.iter(f"{SVG}text") if "→" in (each.text or "")]
        halves = [text_width(each.text or "") / 2 for each in texts]
        middles = [float(each.get("x", "0")) for each in texts]
        assert len(of_class(picture, "mark")) == 6 and 2 <= len(texts) < 6
        assert middles[0] >= halves[0] and middles[-1] + halves[-1] <= width
        assert all(right - left >= 2 * min(halves) for left, right in pairwise(middles))


def test_what_people_typed_cannot_leave_the_data_for_scripts() -> None:
    chart = charts.lines("x", [1, 2], [Series("</script><script>alert(1)</script>", [1, 2]), Series("b", [1, 2])])
    html = engines["django"].from_string("{% chart chart %}").render({"chart": chart})
    assert html.count("<script") == html.count("</script>") == 1


def test_a_sparkline_has_its_ends_as_text_and_nothing_without_values() -> None:
    tag = engines["django"].from_string("{% sparkline values name %}")
    html = tag.render({"values": [2.0, None, 0.5], "name": "<b>"})
    assert "&lt;b&gt;: from 2 to 0.5" in html and html.count("<svg") == 1
    heights = [float(pair.split()[1]) for pair in re.split("[ML]", re.findall(r' d="([^"]+)"', html)[0])[1:]]
    assert heights == [2.0, 22.0], "the whole height, also far from zero"
    for nothing in ([], [1.0], [None, None], None):
        assert tag.render({"values": nothing, "name": "x"}) == ""


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_lines_stand_out_from_the_surface_in_both_themes() -> None:
    css = "".join(path.read_text() for path in sorted((settings.BASE_DIR / "static/css").glob("*.css")))
    pair = r": light-dark\((#[0-9a-f]{6}), (#[0-9a-f]{6})\)"
    (surface,) = re.findall("--surface" + pair, css)
    colours = re.findall(r"--data-\d" + pair, css)
    assert len(colours) == 8
    for colour in colours:
        assert all(contrast(one, ground) >= 3 for one, ground in zip(colour, surface, strict=True)), colour
