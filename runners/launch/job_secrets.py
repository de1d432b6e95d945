"""The secrets of a job, as its first process reads them: files in two folders that the agent filled."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from runners.launch.masking import Masking
from runners.spec import SECRET_VARIABLES_VARIABLE, SECRETS_VARIABLE, RunSpec

OWN_PREFIX = "SCHEDULEARN_"
"""The beginning of the names of variables that only we set."""


@dataclass(frozen=True, slots=True)
class JobSecrets:
    """The values by name. They are not part of the text of this object."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What each rank has as variables."""
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What each rank can read as files."""

    @classmethod
    def read(cls, env: Mapping[str, str]) -> "JobSecrets":
        """Read the folders that these variables name. Raises OSError or ValueError when one cannot be read."""
        variables, files = (
            _contents(Path(env[name])) if env.get(name) else {}
            for name in (SECRET_VARIABLES_VARIABLE, SECRETS_VARIABLE)
        )
        return cls(variables, files)

    def for_ranks(self) -> dict[str, str]:
        """Return the variables of ranks, without names that are ours."""
        return {name: value for name, value in self.variables.items() if not name.startswith(OWN_PREFIX)}

    def check(self, spec: RunSpec) -> None:
        """Raise ValueError when a secret of the job is missing: it must not run without it."""
        there = {"variable": self.variables, "file": self.files}
        missing = [name for name, kind in spec.secrets if name not in there.get(kind, {})]
        if missing and spec.role == "host":
            raise ValueError(f"the secret {missing[0]} is missing")

    def masking(self) -> Masking:
        return Masking((*self.variables.values(), *self.files.values()))


def _contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_bytes().decode() for file in folder.iterdir()}
