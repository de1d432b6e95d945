"""``make sbom``: the bill of materials of a release, in CycloneDX: every locked package and every vendored file.

Hashes of packages are those of the lock file, licences those that the installed packages declare.
"""

import hashlib
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from runners import __version__

ROOT = Path(__file__).resolve().parents[2]
VENDOR = ROOT / "static" / "vendor"
ENTRY = re.compile(r"^([a-z0-9-]+)==([^\s;]+)[^\n]*((?:\n {4}--hash=sha256:[0-9a-f]{64}[ \\]*)+)", re.MULTILINE)
"""A package of a lock file with its hashes."""


def packages(lock: str) -> Iterator[Component]:
    """Yield a component for each package in the text of a lock file."""
    for name, version, hashes in ENTRY.findall(lock):
        yield Component(
            name=name,
            version=version,
            type=ComponentType.LIBRARY,
            purl=PackageURL("pypi", name=name, version=version),
            bom_ref=f"pypi:{name}@{version}",
            hashes=[_sha256(digest) for digest in re.findall("[0-9a-f]{64}", hashes)],
            licenses=[LicenseFactory().make_from_string(licence) for licence in licence_of(name)],
        )


def _sha256(digest: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=digest)


def licence_of(name: str) -> list[str]:
    """Return the licence that an installed package declares, an SPDX expression where it has one; none if not installed."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:  # of another platform
        return []
    if "License-Expression" in about:
        return [about["License-Expression"]]
    named = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier", []) if line.startswith("License ::")]
    written = about["License"].strip().partition("\n")[0] if "License" in about else ""
    return [" and ".join(named) or written] if named or written else []


def vendored(folder: Path = VENDOR) -> Iterator[Component]:
    """Yield a component for each front-end package that comes with the portal, with the hashes of its files."""
    for name, about in tomllib.loads((folder / "vendored.toml").read_text()).items():
        files = sorted(path for pattern in about["files"] for path in folder.glob(pattern))
        space, _, package = about["package"].rpartition("/")
        yield Component(
            name=name,
            version=about["version"],
            type=ComponentType.LIBRARY,
            purl=PackageURL("npm", namespace=space or None, name=package, version=about["version"]),
            bom_ref=f"npm:{about['package']}@{about['version']}",
            licenses=[LicenseFactory().make_from_string(about["licence"])],
            components=[
                Component(
                    name=str(path.relative_to(ROOT)),
                    type=ComponentType.FILE,
                    bom_ref=str(path.relative_to(ROOT)),
                    hashes=[_sha256(hashlib.sha256(path.read_bytes()).hexdigest())],
                )
                for path in files
            ],
        )


def bill_of_materials() -> Bom:
    bom = Bom()
    portal = Component(name="schedulearn", version=__version__, type=ComponentType.APPLICATION, bom_ref="schedulearn")
    bom.metadata.component = portal
    bom.components.update(packages((ROOT / "requirements.lock").read_text()))
    bom.components.update(vendored())
    bom.register_dependency(portal, bom.components)
    return bom


def main() -> int:
    sys.stdout.write(JsonV1Dot6(bill_of_materials()).output_as_string(indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
