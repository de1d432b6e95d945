"""The minor version of Python that a list asks for, if it is only one."""

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from .collecting import Collector, Place
from .texts import shown

MAX_MINOR = 40
MAX_SPECIFIERS = 20


def pinned_python(specifiers: SpecifierSet) -> str:
    """Return the only minor version that fits, such as ``3.11``; empty if several do, or none."""
    patches = {0, 50, 99}
    for each in specifiers:
        release = Version(each.version.removesuffix(".*")).release if each.operator != "===" else ()
        if len(release) > 2 and release[2] < 1000:
            patches |= {release[2], release[2] + 1}
    fitting = [
        minor
        for minor in range(MAX_MINOR + 1)
        if any(specifiers.contains(f"3.{minor}.{patch}", prereleases=True) for patch in patches)
    ]
    return f"3.{fitting[0]}" if len(fitting) == 1 and fitting[0] < MAX_MINOR else ""


def add_python(collector: Collector, text: str, place: Place) -> None:
    """Record what a list asks of Python: a pinned minor version, or a note with what it states."""
    try:
        specifiers = SpecifierSet(text) if len(text) <= 200 else None
    except InvalidSpecifier:
        specifiers = None
    if specifiers is None or len(specifiers) > MAX_SPECIFIERS:
        collector.note(place, f"Its version of Python, “{shown(text, 60)}”, is not understood. Choose one yourself.")
        return
    pinned = pinned_python(specifiers)
    if pinned:
        collector.python = pinned
    elif len(specifiers):
        collector.note(place, f"It asks for Python {shown(str(specifiers), 80)}. Choose a base with such a version.")
