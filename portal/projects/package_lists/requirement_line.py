"""Judges one line of a list: accepted and written again, or refused with a sentence."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from . import options, sources

MAX_LENGTH = 1000
"""Characters of a line, without hashes."""
MAX_NAME = 100

_HASH = re.compile(r"[ \t]--hash(?:[ \t]*=[ \t]*|[ \t]+)[A-Za-z0-9]+:[A-Za-z0-9]+(?=[ \t]|$)")
_LINE_OPTION = re.compile(r"[ \t]--?[A-Za-z]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://|[^=])|(?:git|hg|svn|bzr)\+", re.IGNORECASE)
_SCP = re.compile(r"[\w.-]+@[\w.-]+:(?!//)\S*")
"""``git@host:group/name.git``, as git clones over SSH."""
_DRIVE = re.compile(r"[A-Za-z]:[\\/]")
_LOCAL_FILE = re.compile(r"[^@;]*\.(?:whl|zip|tar\.gz|tar\.bz2|tgz)(?:\[[^]]*\])?", re.IGNORECASE)
_HERE = re.compile(r"\./?(?:\[[^]]*\])?")
_PREFIXED_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CONDA_EXPORT = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)=([A-Za-z0-9][^=\s]*)(?:=[^=\s]+)?")
_BLANK_VERSION = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)[ \t]+(\d[\w.*+!-]*)")
_CONDA_BUILD = re.compile(r"/(?:croot|conda-bld|feedstock_root|tmp/build/[0-9a-f]{8}|[A-Z]:/bld)/", re.IGNORECASE)
"""The folders in which conda, conda-forge and Anaconda build packages."""
_CODE = re.compile(r"[A-Za-z0-9._+*,<>=!~()\[\]\"'; @:/#%&-]*")
_MARKER = re.compile(r"[A-Za-z0-9_ ()<>=!~]*(?:\"[A-Za-z0-9._+*, -]*\"[A-Za-z0-9_ ()<>=!~]*)*")

OWN_CODE = (
    "The code of an upload is not installed: it can be imported already, from the top of the upload and from its folder src. "
    "Remove this line."
)
PATH = "Paths are not installed. Put the code of the package into your upload, where it can be imported, and list what it needs by name."


_CUDA = "CUDA comes with the base, or with the packages that need it, such as torch. Remove this line."
NOT_PACKAGES = {
    "python": "Python is not installed as a package. Remove this line, and choose a full environment, which has the Python that you "
    "choose.",
    **dict.fromkeys(("cuda", "cudatoolkit", "cudnn", "pytorch-cuda"), _CUDA),
    "cpuonly": "Nodes without GPUs get packages for processors by themselves. Remove this line.",
}
"""What conda installs and the package index does not have, with what to do."""
OTHER_NAMES = {
    "cv2": "opencv-python-headless",
    "opencv": "opencv-python-headless",
    "pil": "pillow",
    "pytorch": "torch",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Names under which the index has nothing, or a package that only refuses to be installed, with those that are meant."""
SAME_VERSIONS = frozenset({"pytorch"})
"""Those whose versions are those of the package that is meant. Others are modules, or have versions of their own."""


class LineRefusedError(ValueError):
    """A line that is not taken; the message has the reason and what to do."""


@dataclass(frozen=True, slots=True)
class ParsedLine:
    """What an accepted line is: a requirement in canonical form, or an index. ``note`` is a sentence about what was changed."""

    requirement: str = ""
    index: str = ""
    note: str = ""


def parse_line(text: str, allowed: Sequence[str] = ()) -> ParsedLine:
    """Judge one line without a comment. ``allowed`` are the addresses that an admin has allowed. Raises LineRefusedError."""
    line = text.strip()
    if option := options.parse_option(line):
        return _judge_option(option, allowed)
    line, hashes = _HASH.subn("", line)
    line = line.rstrip()
    if len(line) > MAX_LENGTH:
        raise LineRefusedError(f"This line is longer than {MAX_LENGTH:,} characters. Write one package on a line.")
    note = (
        "The hash in the file is not used: packages are always locked with the hashes of all their files."
        if hashes
        else ""
    )
    if _is_path(line):
        raise LineRefusedError(OWN_CODE if _HERE.fullmatch(line) else PATH)
    if _SCHEME.match(line) or _SCP.fullmatch(line):
        return ParsedLine(_from_bare_address(line, allowed), note=note)
    if not _CODE.fullmatch(line):
        raise LineRefusedError(
            "This line has characters that are not allowed here. Type it again, in ASCII: name>=1.2,<2."
        )
    if _LINE_OPTION.search(line.partition(";")[0]):
        raise LineRefusedError("Options after a package are not taken. Keep only its name and versions.")
    requirement = _parse_requirement(line)
    if requirement.url is not None:
        return _with_address(requirement, requirement.url, allowed)
    name = canonicalize_name(requirement.name)
    if name in NOT_PACKAGES:
        raise LineRefusedError(NOT_PACKAGES[name])
    if name in OTHER_NAMES:
        return _under_its_name(requirement, name)
    return ParsedLine(write(requirement), note=note)


def _under_its_name(requirement: Requirement, name: str) -> ParsedLine:
    """Return the line of the package that is meant by another name."""
    meant = requirement_of(OTHER_NAMES[name], sorted(requirement.extras), requirement, "")
    note = f"{name} is called {meant.name} on the package index, and is installed under that name."
    if meant.specifier and name not in SAME_VERSIONS:
        meant.specifier = SpecifierSet()
        note = f"{note[:-1]}, without a version: add one if it matters."
    return ParsedLine(write(meant), note=note)


def write(requirement: Requirement, url: str = "") -> str:
    """Write a requirement in canonical form. Raises LineRefusedError where it could be read in another way."""
    name = canonicalize_name(requirement.name)
    if len(name) > MAX_NAME:
        raise LineRefusedError(f"The name of a package has at most {MAX_NAME} characters.")
    extras = sorted({canonicalize_name(extra) for extra in requirement.extras})
    line = f"{name}[{','.join(extras)}]" if extras else name
    line += f" @ {url}" if url else str(requirement.specifier)
    if requirement.marker is not None:
        line += f"{' ' if url else ''}; {_written_marker(requirement.marker)}"
    try:
        again = Requirement(line)
    except (InvalidRequirement, RecursionError):
        again = None
    if again is None or again != requirement_of(name, extras, requirement, url):
        raise LineRefusedError("This line could be understood in two ways. Write it more simply: name>=1.2,<2.")
    return line


def requirement_of(name: str, extras: Sequence[str], requirement: Requirement, url: str) -> Requirement:
    """Return a requirement with another name, extras and address, and the versions and marker of this one."""
    made = Requirement(name)
    made.extras, made.marker, made.url = set(extras), requirement.marker, url or None
    made.specifier = SpecifierSet() if url else requirement.specifier
    return made


def _judge_option(option: options.Option, allowed: Sequence[str]) -> ParsedLine:
    if option.name in options.INDEXES:
        try:
            index = sources.check_allowed(option.value, allowed)
            sources.check_index(index)
        except sources.UninstallableError as error:
            raise LineRefusedError(str(error)) from None
        except sources.AddressError as error:
            raise LineRefusedError(f"{error} Remove this line, or ask an admin to allow this index.") from None
        return ParsedLine(index=str(index))
    if option.name == "--editable":
        is_own = bool(_HERE.fullmatch(option.value))
        raise LineRefusedError(OWN_CODE if is_own else PATH if _is_path(option.value) else _EDITABLE)
    raise LineRefusedError(options.why_refused(option.name))


_EDITABLE = (
    "Nothing is installed as editable, because a job cannot change packages. Name the package without -e, or put its code into "
    "your upload."
)


def _is_path(line: str) -> bool:
    """Return whether pip would look for a file or folder."""
    begins = line.startswith((".", "/", "~", "\\", "file:")) or bool(_DRIVE.match(line))
    is_plain = "@" not in line and ":" not in line
    return begins or (is_plain and (bool(_LOCAL_FILE.fullmatch(line)) or "/" in line.partition(";")[0] or "\\" in line))


def _parse_requirement(line: str) -> Requirement:
    try:
        requirement = Requirement(line)
    except (InvalidRequirement, RecursionError):
        raise LineRefusedError(_why_not_understood(line)) from None
    if _is_version(canonicalize_name(requirement.name)):
        raise LineRefusedError(f"{requirement.name} is a version, not a package. Write name=={requirement.name}.")
    requirement.specifier = _usual_specifiers(requirement.specifier)
    return requirement


def _is_version(name: str) -> bool:
    try:
        Version(name)
    except InvalidVersion:
        return False
    return name[0].isdigit()


def _usual_specifiers(specifiers: SpecifierSet) -> SpecifierSet:
    """Replace ``===``, which accepts any text as a version, by ``==``."""
    if all(each.operator != "===" for each in specifiers):
        return specifiers
    parts = []
    for each in specifiers:
        try:
            parts.append(f"=={Version(each.version)}" if each.operator == "===" else str(each))
        except InvalidVersion:
            raise LineRefusedError("What follows === is not a version. Write == and a version.") from None
    return SpecifierSet(",".join(parts))


def _why_not_understood(line: str) -> str:
    blank = _BLANK_VERSION.fullmatch(line)
    exported = _CONDA_EXPORT.fullmatch(line)
    if match := blank or exported:
        try:
            return f"A version is written with ==. Write {match[1]}=={Version(match[2])}."
        except InvalidVersion:
            pass
    name = _PREFIXED_NAME.match(line)
    example = name[0] if name and len(name[0]) <= 60 else "name"
    return (
        f"This is not a package with versions as pip writes them. Write, for example, {example} or {example}>=1.2,<2."
    )


def _written_marker(marker: Marker) -> str:
    text = str(marker)
    if not _MARKER.fullmatch(text) or any(value.startswith("-") for value in text.replace('"', " ").split()):
        raise LineRefusedError(
            "The condition after the semicolon is not understood. Remove it, or write it more simply."
        )
    return text


def _with_address(requirement: Requirement, url: str, allowed: Sequence[str]) -> ParsedLine:
    name = canonicalize_name(requirement.name)
    if url.lower().startswith("file:"):
        if not _CONDA_BUILD.search(unquote(url).replace("\\", "/")):
            raise LineRefusedError(
                f"This names a file of the machine where the list was made. Write {name}, with its version."
            )
        plain = requirement_of(name, sorted(requirement.extras), requirement, "")
        note = (
            f"The list was made with conda, which names the folder where it built {name} instead of the version. {name} is taken "
            "without a version: add one if it matters."
        )
        return ParsedLine(write(plain), note=note)
    return ParsedLine(write(requirement, _checked(url, name, allowed)))


def _from_bare_address(line: str, allowed: Sequence[str]) -> str:
    """Return ``name @ address`` for an address alone, whose name is in its fragment or that of a wheel."""
    address, _, marker = line.partition(" ")
    marker = marker.strip()
    try:
        found = sources.check_allowed(address, allowed)
        sources.check_installable(found)
        name = found.egg or parse_wheel_filename(unquote(found.segments[-1]))[0]
        requirement = Requirement(f"{name} {marker}")
    except sources.UninstallableError as error:
        raise LineRefusedError(str(error)) from None
    except sources.AddressError as error:
        raise LineRefusedError(
            f"{error} Write the name of the package, or ask an admin to allow this source."
        ) from None
    except InvalidWheelFilename:
        raise LineRefusedError("The name of the package is missing. Write name @ before the address.") from None
    except (InvalidRequirement, RecursionError):
        raise LineRefusedError("What follows the address is not understood. Remove it.") from None
    if requirement.specifier or requirement.url or (marker and not marker.startswith(";")):
        raise LineRefusedError("What follows the address is not understood. Remove it.")
    return write(requirement, str(found))


def _checked(url: str, name: str, allowed: Sequence[str]) -> str:
    """Return the canonical address of a package if it is allowed. Raises LineRefusedError."""
    try:
        found = sources.check_allowed(url, allowed)
        sources.check_installable(found)
    except sources.UninstallableError as error:
        raise LineRefusedError(str(error)) from None
    except sources.AddressError as error:
        raise LineRefusedError(
            f"{error} Write {name} with its version, or ask an admin to allow this source."
        ) from None
    if found.egg and found.egg != name:
        raise LineRefusedError(f"The address names another package, {found.egg}. Write {found.egg} @ and the address.")
    return str(found)


def merge(lines: Sequence[str]) -> tuple[str, ...]:
    """Join accepted lines about the same package under the same marker; their versions must all hold. Order is kept."""
    found: dict[tuple[str, str, str], Requirement] = {}
    for line in lines:
        requirement = Requirement(line)
        key = (requirement.name, str(requirement.marker or ""), requirement.url or "")
        if key in found:
            found[key].extras |= requirement.extras
            found[key].specifier = _both(found[key].specifier, requirement.specifier)
        else:
            found[key] = requirement
    return tuple(write(each, each.url or "") for each in found.values())


def _both(first: SpecifierSet, second: SpecifierSet) -> SpecifierSet:
    try:
        return first & second
    except (ValueError, InvalidSpecifier):
        return first
