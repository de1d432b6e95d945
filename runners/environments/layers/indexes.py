"""Where a build may fetch from: the package indexes of this machine's pip, and those that a recipe adds."""

import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from subprocess import SubprocessError
from urllib.parse import unquote, urlsplit

from runners.environments import images, pip_settings
from runners.environments.layers.recipe import Recipe, host_rule
from runners.environments.pip_settings import UntranslatableError
from runners.environments.preparing import PrepareError
from runners.host.egress import WEB_PORTS, HostRule
from runners.host.upstream import Upstream, environment_upstream
from runners.messages.environment_failures import SystemRefused
from runners.messages.layer_failures import PipOptionUnsupported, ProxyUnsupported

DEFAULT_INDEX = "https://pypi.org/simple"
FILE_HOSTS: Mapping[str, tuple[str, ...]] = {
    "pypi.org": ("files.pythonhosted.org",),
    "download.pytorch.org": ("*.pytorch.org",),
}
"""Other hosts from which public indexes serve the files that they list."""
COMMON_FOLDERS = ("/", "/home", "/mnt", "/opt", "/root", "/srv", "/tmp", "/usr", "/var")  # noqa: S108
"""Folders with more than packages, which a build never sees as a whole."""


@dataclass(frozen=True)
class IndexAccess:
    """What uv needs in a sandbox to find what this machine's pip finds."""

    options: tuple[str, ...]
    variables: Mapping[str, str]
    constraints: tuple[Path, ...]
    """Copies of the files by which pip limits versions."""
    folders: tuple[Path, ...]
    """Folders of packages on this machine."""
    rules: tuple[HostRule, ...]
    upstream: Upstream | None

    def with_index(self, address: str) -> Mapping[str, str]:
        """Return the variables with one more index."""
        return {**self.variables, "UV_INDEX": f"{self.variables.get('UV_INDEX', '')} {address}".strip()}


def find_access(recipe: Recipe, inputs: Path) -> IndexAccess:
    """Return the access of a build. ``inputs``: a folder that its sandbox reads, for copies of certificates and constraints.

    Raises PrepareError when pip's configuration cannot be read or followed.
    """
    torch_index = os.environ.get("SCHEDULEARN_TORCH_INDEX", "")
    try:
        config = pip_settings.read()
        settings = pip_settings.translate(config, " ".join((*filter(None, [torch_index]), *recipe.indexes)))
        upstream = environment_upstream(config.get("proxy", ""))
    except UntranslatableError as error:
        raise PrepareError(PipOptionUnsupported(str(error))) from error
    except ValueError as error:
        raise PrepareError(ProxyUnsupported(str(error))) from error
    except (OSError, SubprocessError, SyntaxError) as error:
        raise PrepareError(SystemRefused(f"pip's configuration cannot be read: {error}")) from error
    variables = dict(settings.variables)
    for name in ("HTTP_PROXY", "HTTPS_PROXY"):  # of the machine; a build has its own
        variables.pop(name, None)
    constraints = tuple(copied(Path(path), inputs) for path in variables.pop("UV_CONSTRAINT", "").split())
    certificates = variables.get("SSL_CERT_FILE") or os.environ.get("REQUESTS_CA_BUNDLE")
    if certificates := certificates or os.environ.get("SSL_CERT_FILE"):
        variables["SSL_CERT_FILE"] = str(copied(Path(certificates), inputs))
    if client := variables.get("SSL_CLIENT_CERT"):
        variables["SSL_CLIENT_CERT"] = str(copied(Path(client), inputs))
    own = machine_addresses(config, torch_index)
    return IndexAccess(
        tuple(option for option in settings.options if recipe.source_builds or not builds_source(option)),
        variables,
        constraints,
        tuple(folder for address in own for folder in local_folders(address)),
        (
            *rules_for(own, internal=True),
            *rules_for([*recipe.indexes, *cpu_indexes()], internal=False),
            *map(host_rule, recipe.hosts),
        ),
        upstream,
    )


def builds_source(option: str) -> bool:
    """Whether an option of pip's configuration would build packages from source, against ``--only-binary``."""
    return option.startswith("--no-binary")


def copied(path: Path, inputs: Path) -> Path:
    """Copy a file of the machine for the sandbox, which does not see its place. Raises PrepareError."""
    copy = inputs / f"machine-{len(list(inputs.iterdir()))}-{path.name}"
    try:
        shutil.copyfile(path, copy)
    except OSError as error:
        raise PrepareError(SystemRefused(f"{path}, which pip's configuration names: {error.strerror}")) from error
    return copy


def machine_addresses(config: Mapping[str, str], torch_index: str) -> list[str]:
    """Return the addresses and folders that this machine itself is configured with."""
    indexed = (
        [] if config.get("no-index", "").lower() not in pip_settings.FALSE_VALUES else [config.get("index-url") or ""]
    )
    listed = [each for name in ("extra-index-url", "find-links") for each in config.get(name, "").split()]
    return [*(address or DEFAULT_INDEX for address in indexed), *listed, *filter(None, [torch_index])]


def cpu_indexes() -> list[str]:
    """Return the indexes with builds of PyTorch for CPUs that the curated environments name."""
    return sorted({entry.torch_cpu_index for entry in images.catalogue() if entry.torch_cpu_index})


def rules_for(addresses: Iterable[str], internal: bool) -> list[HostRule]:
    """Return a rule for the host of each address, and for where a public index has its files."""
    rules = []
    for address in addresses:
        try:
            parts = urlsplit(address)
            host, port = parts.hostname, parts.port
        except ValueError:
            continue  # uv reports it
        if parts.scheme in ("http", "https") and host:
            rules.append(HostRule(host, WEB_PORTS | ({port} if port else set()), internal))
            rules += [HostRule(other, internal=internal) for other in FILE_HOSTS.get(host, ())]
    return rules


def local_folders(address: str) -> list[Path]:
    """Return the folders of an index or of wheels on this machine; an index ``X/simple`` has its files beside it, in ``X``."""
    if address.startswith("file://"):
        path = Path(unquote(urlsplit(address).path))
    elif "://" not in address:
        path = Path(address).expanduser()
    else:
        return []
    folder = (path if path.is_dir() else path.parent).absolute()
    if folder.name == "simple":
        folder = folder.parent
    return [folder] if folder.is_dir() and str(folder) not in COMMON_FOLDERS else []
