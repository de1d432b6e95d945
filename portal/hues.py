"""Marks of people, projects and groups: a hue, a shape and a code of two letters, the same on every page.

The hue follows from the primary key, so it never changes. There are fewer hues than people in a lab: the code and the name
beside the mark, or in its title, distinguish those that share one. ``static/css/hues.css`` has the colours.
"""

import re
from dataclasses import dataclass
from typing import Literal

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from portal.accounts.models import User
from portal.projects.models import Project

register = template.Library()

HUES = 8
STEP = 3
"""Has no divisor in common with ``HUES``: eight keys in a row have eight hues, and neighbours are not alike."""
WORD = re.compile(r"[^\W_]+")
UNKNOWN_CODE = "??"

Kind = Literal["person", "project", "group"]


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of a person (a disc), of a project (a square) or of a group (a hexagon)."""

    kind: Kind
    pk: int
    name: str
    code: str

    @property
    def hue(self) -> int:
        return hue_of(self.pk)

    @property
    def css(self) -> str:
        return f"mark {self.kind} hue-{self.hue}"


def hue_of(pk: int) -> int:
    """Return the number of the hue of a row."""
    return pk * STEP % HUES


def code_of(name: str) -> str:
    """Return two letters: the first ones of the first and the last word, or of the only word."""
    words: list[str] = WORD.findall(name)
    if not words:
        return UNKNOWN_CODE
    letters = words[0][:1] + words[-1][:1] if len(words) > 1 else words[0][:2]
    return letters.upper()[:2]  # a capital of one letter may have two, as that of ß


def mark_of_person(pk: int, username: str, first_name: str = "", last_name: str = "") -> Mark:
    return Mark("person", pk, username, code_of(f"{first_name} {last_name}" if first_name and last_name else username))


def mark_of_project(pk: int, name: str) -> Mark:
    return Mark("project", pk, name, code_of(name))


def mark_of_group(pk: int, name: str) -> Mark:
    return Mark("group", pk, name, code_of(name))


@register.simple_tag
def person_mark(user: User, with_name: bool = False) -> SafeString:
    """Draw the mark of a person, hidden from screen readers: ``{% person_mark user %}`` stands beside the name.

    ``{% person_mark user True %}`` adds the name.
    """
    return draw(mark_of_person(user.pk, user.username, user.first_name, user.last_name), with_name)


@register.simple_tag
def project_mark(project: Project, with_name: bool = False) -> SafeString:
    """Draw the mark of a project as ``person_mark`` does that of a person."""
    return draw(mark_of_project(project.pk, project.name), with_name)


@register.simple_tag(name="mark")
def draw(mark: Mark, with_name: bool = False) -> SafeString:
    """Draw a mark that the view has made: ``{% mark holder.person %}``."""
    sign = format_html(
        '<span class="{}" aria-hidden="true"{}>{}</span>',
        mark.css,
        "" if with_name else format_html(' title="{}"', mark.name),
        mark.code,
    )
    return format_html('<span class="marked">{}<span>{}</span></span>', sign, mark.name) if with_name else sign
