"""The bill of materials names everything that is installed or shipped, and is valid CycloneDX."""

import re
import tomllib

import pytest
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from portal.ops.sbom import ROOT, VENDOR, bill_of_materials, licence_of, packages


def test_it_is_valid_and_has_each_locked_package_and_each_vendored_one() -> None:
    bom = bill_of_materials()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(JsonV1Dot6(bom).output_as_string()) is None
    locked = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    found = {(component.name, component.version) for component in bom.components}
    assert len(locked) > 50 and set(locked) < found
    assert {"htmx", "uplot", "inter", "jetbrains-mono"} <= {name for name, _ in found}


def test_a_package_has_the_hashes_of_its_lock() -> None:
    lines = [
        "six==1.17.0 \\",
        *(f"    --hash=sha256:{digit * 64} \\" for digit in "ab"),
        "    --hash=sha256:" + "c" * 64,
    ]
    [six] = packages("\n".join(lines) + "\n")
    assert (six.name, six.version) == ("six", "1.17.0")
    assert {str(each.content)[0] for each in six.hashes} == set("abc")


def test_licences_are_what_packages_declare() -> None:
    assert licence_of("django") == ["BSD-3-Clause"]
    assert licence_of("no-such-package") == []


def test_every_vendored_file_is_listed_with_its_licence_text() -> None:
    listed = tomllib.loads((VENDOR / "vendored.toml").read_text())
    of = {name: {path for pattern in about["files"] for path in VENDOR.glob(pattern)} for name, about in listed.items()}
    there = {path for path in VENDOR.rglob("*") if path.is_file() and path.name != "vendored.toml"}
    assert set().union(*of.values()) == there
    for name, files in of.items():
        assert any("LICENSE" in path.name for path in files), name


@pytest.mark.parametrize("name", ["htmx", "uplot"])
def test_a_script_has_its_version_in_its_name(name: str) -> None:
    about = tomllib.loads((VENDOR / "vendored.toml").read_text())[name]
    assert all(about["version"] in path for path in about["files"])
