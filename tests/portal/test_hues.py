"""Marks of people and projects: stable hues that everybody can tell apart, and codes."""

import itertools
import math
import re
from pathlib import Path

import pytest
from django.template import Context, Template

from portal.accounts.models import User
from portal.hues import HUES, code_of, hue_of
from portal.projects.models import Project

ROOT = Path(__file__).resolve().parents[2]
STYLES = (ROOT / "static/css/tokens.css").read_text()
SURFACES = {0: ("#ffffff", "#f8f7f5", "#efeeea"), 1: ("#191d20", "#121517", "#0c0f11")}
"""The grounds on which marks stand, light and dark: ``--surface``, ``--paper`` and ``--sunken``."""
DEFICIENCIES = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)),
}
"""What a person with a colour deficiency sees of linear RGB (Machado, Oliveira and Fernandes, 2009)."""
MIN_DISTANCE = 0.09
"""In OKLab; 0.02 is just noticeable side by side."""
Colour = tuple[float, float, float]


def linear(text: str) -> Colour:
    parts = [int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return red, green, blue


def luminance(text: str) -> float:
    red, green, blue = linear(text)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def oklab(colour: Colour) -> Colour:
    r, g, b = colour
    cones = (
        0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
        0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
        0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
    )
    long, medium, short = (math.copysign(abs(cone) ** (1 / 3), cone) for cone in cones)
    return (
        0.2104542553 * long + 0.793617785 * medium - 0.0040720468 * short,
        1.9779984951 * long - 2.428592205 * medium + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * medium - 0.808675766 * short,
    )


def as_seen(text: str, deficiency: str) -> Colour:
    seen = [
        sum(weight * part for weight, part in zip(row, linear(text), strict=True)) for row in DEFICIENCIES[deficiency]
    ]
    red, green, blue = (min(1.0, max(0.0, part)) for part in seen)
    return oklab((red, green, blue))


def colours(suffix: str = "") -> list[tuple[str, str]]:
    found = re.findall(rf"--hue-(\d){suffix}: light-dark\((#\w{{6}}), (#\w{{6}})\)", STYLES)
    assert [int(number) for number, *_ in found] == list(range(HUES))
    return [(light, dark) for _, light, dark in found]


@pytest.mark.parametrize("theme", [0, 1])
def test_each_hue_stands_out_from_the_surface_and_its_letters_from_it(theme: int) -> None:
    for hue, ink in zip(colours(), colours("-ink"), strict=True):
        assert all(contrast(hue[theme], surface) >= 3 for surface in SURFACES[theme]), hue
        assert contrast(hue[theme], ink[theme]) >= 4.5, hue


@pytest.mark.parametrize("deficiency", sorted(DEFICIENCIES))
@pytest.mark.parametrize("theme", [0, 1])
def test_any_two_hues_differ_for_everybody(theme: int, deficiency: str) -> None:
    for one, other in itertools.combinations([hue[theme] for hue in colours()], 2):
        assert math.dist(as_seen(one, deficiency), as_seen(other, deficiency)) >= MIN_DISTANCE, (one, other)


def test_rows_made_one_after_the_other_have_different_hues_and_keep_them() -> None:
    for first in (1, 6, 1000):
        assert len({hue_of(pk) for pk in range(first, first + HUES)}) == HUES
    assert hue_of(41) == hue_of(41)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("alice", "AL"),
        ("ada.lovelace", "AL"),
        ("Digits from pictures", "DP"),
        ("x", "X"),
        ("gpu_test-2", "G2"),
        ("ßeta", "SS"),
        ("…", "??"),
        ("", "??"),
        ("Ελένη Παπά", "ΕΠ"),
    ],
)
def test_codes(name: str, code: str) -> None:
    assert code_of(name) == code


def test_marks_have_letters_and_a_shape_and_hide_no_markup() -> None:
    user, project = User(pk=5, username='<b>"eve', first_name="Eve", last_name="Q"), Project(pk=9, name="<i>x y")
    page = Template("{% person_mark user %}{% project_mark project True %}").render(
        Context({"user": user, "project": project})
    )
    assert f'class="mark person hue-{hue_of(5)}" aria-hidden="true"' in page and ">EQ</span>" in page
    assert f'class="mark project hue-{hue_of(9)}"' in page and "&lt;i&gt;x y" in page
    assert "<b>" not in page and "<i>" not in page
