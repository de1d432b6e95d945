"""Describes an environment for a build, from inside: ``python probe.py FILE`` writes it as JSON.

Only the standard library is used, and nothing of ours: it runs on whatever Python a base has.
"""

import importlib.metadata
import json
import os
import platform
import site
import sys
from pathlib import Path


def markers() -> "dict[str, str]":
    """The values of environment markers (PEP 508)."""
    version = sys.implementation.version
    return {
        "implementation_name": sys.implementation.name,
        "implementation_version": f"{version.major}.{version.minor}.{version.micro}",
        "os_name": os.name,
        "platform_machine": platform.machine(),
        "platform_release": platform.release(),
        "platform_system": platform.system(),
        "platform_version": platform.version(),
        "python_full_version": platform.python_version(),
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
        "sys_platform": sys.platform,
    }


def distributions() -> "list[dict[str, str]]":
    """Name, version and metadata of each installed package."""
    found = []
    for each in importlib.metadata.distributions():
        name, version = each.metadata["Name"], each.version
        if name and version:
            found.append({"name": name, "version": version, "metadata": each.read_text("METADATA") or ""})
    return found


def top_level(folder: Path) -> "list[str]":
    """Import names in a folder of packages, without namespaces, which several packages share."""
    names = []
    for entry in folder.iterdir() if folder.is_dir() else ():
        stem = entry.name.partition(".")[0]
        is_module = entry.name.endswith((".py", ".so")) and entry.is_file()
        is_package = entry.is_dir() and (entry / "__init__.py").exists()
        if stem.isidentifier() and (is_module or is_package):
            names.append(stem)
    return names


def main(path: str) -> None:
    found = {
        "markers": markers(),
        "distributions": distributions(),
        "modules": sorted({name for folder in site.getsitepackages() for name in top_level(Path(folder))}),
        "standard": sorted(getattr(sys, "stdlib_module_names", sys.builtin_module_names)),
    }
    Path(path).write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
