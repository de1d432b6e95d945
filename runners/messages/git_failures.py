"""Why the commit of a project could not be fetched from Git, and what would fix it."""

from dataclasses import dataclass

from runners.messages import Message
from runners.messages.environment_failures import Failure

GIT_PAGE = "the project's Git page"
ADMIN_PAGE = "Admin > Git hosts"
KEEP_DATA_OUT = "Keep data out of the repository, and put it into a dataset."


# --- the host ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostNotAllowed(Failure):
    code = "git.host_not_allowed"
    host: str

    @property
    def reason(self) -> str:
        return f"Code may not be fetched from {self.host}."

    @property
    def fix(self) -> str:
        return f"An admin can allow it under {ADMIN_PAGE}."


@dataclass(frozen=True)
class HostInternal(Failure):
    """Its name leads into the local network."""

    code = "git.host_internal"
    host: str
    error: str

    @property
    def reason(self) -> str:
        return f"{self.host} was not contacted: {self.error}."

    @property
    def fix(self) -> str:
        return f"If it is a host of the lab, an admin can allow it as one in the local network under {ADMIN_PAGE}."


@dataclass(frozen=True)
class HostUnreachable(Failure):
    code = "git.host_unreachable"
    transient = True
    host: str
    error: str

    @property
    def reason(self) -> str:
        return f"{self.host} cannot be reached from this node: {self.error}."

    @property
    def fix(self) -> str:
        return "Check the address and the network of the node, then fetch again."


@dataclass(frozen=True)
class CertificateUnknown(Failure):
    code = "git.certificate"
    host: str
    error: str

    @property
    def reason(self) -> str:
        return f"The certificate of {self.host} is not valid here: {self.error}."

    @property
    def fix(self) -> str:
        return (
            "If the lab has its own certificate authority, an admin adds its certificate to the node's system, or names "
            "it with SSL_CERT_FILE in the settings of its agent."
        )


@dataclass(frozen=True)
class HostKeyUnknown(Failure):
    code = "git.host_key_unknown"
    host: str
    fingerprint: str

    @property
    def reason(self) -> str:
        return f"{self.host} has the host key {self.fingerprint}, which is not confirmed yet."

    @property
    def fix(self) -> str:
        return f"Compare it with the fingerprint that the host publishes. If they match, an owner confirms it on {GIT_PAGE}."


@dataclass(frozen=True)
class HostKeyChanged(Failure):
    code = "git.host_key_changed"
    host: str
    fingerprint: str

    @property
    def reason(self) -> str:
        return (
            f"{self.host} has another host key than the one that was confirmed: {self.fingerprint}. Nothing was sent to "
            "it. Someone may be intercepting the connection."
        )

    @property
    def fix(self) -> str:
        return f"Ask whoever runs the host. If the key was replaced, an owner confirms the new one on {GIT_PAGE}."


# --- signing in -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TokenRefused(Failure):
    code = "git.token_refused"
    host: str
    has_token: bool

    @property
    def reason(self) -> str:
        if not self.has_token:
            return f"{self.host} shows this repository only to users who sign in, or it does not exist."
        return f"{self.host} does not accept the stored token for this repository."

    @property
    def fix(self) -> str:
        what = "a new token" if self.has_token else "a token"
        return f"Check the address. An owner can enter {what} on {GIT_PAGE}: one that may read this repository."


@dataclass(frozen=True)
class KeyRefused(Failure):
    code = "git.key_refused"
    host: str

    @property
    def reason(self) -> str:
        return f"{self.host} does not accept the deploy key of this project."

    @property
    def fix(self) -> str:
        return f"Add the deploy key shown on {GIT_PAGE} to the repository at {self.host}; read access is enough."


@dataclass(frozen=True)
class NoRepository(Failure):
    code = "git.no_repository"
    address: str

    @property
    def reason(self) -> str:
        return f"There is no repository at {self.address}, or the project's key or token may not read it."

    @property
    def fix(self) -> str:
        return "Check the address, and what the key or token may read."


# --- the repository ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoBranch(Failure):
    code = "git.no_branch"
    branch: str
    branches: tuple[str, ...]
    count: int

    @property
    def reason(self) -> str:
        if not self.count:
            return "The repository has no branches: nothing was pushed to it yet."
        rest = self.count - len(self.branches)
        more = f" and {rest} more" if rest > 0 else ""
        return f"The repository has no branch {self.branch}. It has {', '.join(self.branches)}{more}."

    @property
    def fix(self) -> str:
        return "Push the branch." if not self.count else f"Choose another branch on {GIT_PAGE}, or push this one."


@dataclass(frozen=True)
class RepositoryTooLarge(Failure):
    code = "git.repository_too_large"
    max_mib: int

    @property
    def reason(self) -> str:
        return f"The newest commit of this repository has more than {_size(self.max_mib)}, the most that is fetched."

    @property
    def fix(self) -> str:
        return KEEP_DATA_OUT


@dataclass(frozen=True)
class TreeTooLarge(Failure):
    code = "git.tree_too_large"
    mib: int
    max_mib: int

    @property
    def reason(self) -> str:
        return f"The files of this commit have {_size(self.mib)}, and code may have {_size(self.max_mib)}."

    @property
    def fix(self) -> str:
        return KEEP_DATA_OUT


@dataclass(frozen=True)
class LargeFiles(Failure):
    code = "git.large_files"
    files: tuple[str, ...]
    count: int
    max_mib: int

    @property
    def reason(self) -> str:
        return f"A file may have {_size(self.max_mib)}, and {_listed(self.files, self.count)} {_have(self.count)} more."

    @property
    def fix(self) -> str:
        return KEEP_DATA_OUT


@dataclass(frozen=True)
class TooManyRepositoryFiles(Failure):
    code = "git.too_many_files"
    limit: int

    @property
    def reason(self) -> str:
        return f"The commit has more than {self.limit:,} files."

    @property
    def fix(self) -> str:
        return KEEP_DATA_OUT


@dataclass(frozen=True)
class LinkTooLong(Failure):
    code = "git.link_too_long"
    path: str

    @property
    def reason(self) -> str:
        return f"{self.path} is a link to a path that is too long."


@dataclass(frozen=True)
class BrokenObjects(Failure):
    code = "git.broken_objects"
    error: str

    @property
    def reason(self) -> str:
        return f"The repository has objects that are damaged or malicious: {self.error}."

    @property
    def fix(self) -> str:
        return "Run git fsck in a clone and repair what it reports."


@dataclass(frozen=True)
class BadSubmodule(Failure):
    code = "git.bad_submodule"
    path: str
    address: str

    @property
    def reason(self) -> str:
        return (
            f"The submodule {self.path} cannot be fetched from “{self.address}”: only https and ssh addresses of hosts are "
            "fetched whose submodules an admin has allowed, 50 in all and 4 one in another."
        )

    @property
    def fix(self) -> str:
        return f"Change its address in .gitmodules, or switch submodules off on {GIT_PAGE}."


@dataclass(frozen=True)
class SubmoduleFailed(Failure):
    code = "git.submodule_failed"
    path: str
    failure: Message

    @property
    def reason(self) -> str:
        return f"The submodule {self.path} was not fetched. {self.failure.text}"


@dataclass(frozen=True)
class NoLfsProgram(Failure):
    code = "git.no_lfs_program"
    transient = True

    @property
    def reason(self) -> str:
        return "The repository has files of Git LFS, and this node has no git-lfs."

    @property
    def fix(self) -> str:
        return (
            f"An admin installs git-lfs on the node (Debian: apt-get install git-lfs), or switch LFS off on {GIT_PAGE}."
        )


@dataclass(frozen=True)
class NoLfsFile(Failure):
    code = "git.no_lfs_file"
    path: str

    @property
    def reason(self) -> str:
        return f"The server has not sent {self.path}, a file of Git LFS."

    @property
    def fix(self) -> str:
        return "Push it again with git lfs push --all."


@dataclass(frozen=True)
class FetchTooSlow(Failure):
    code = "git.too_slow"
    transient = True
    minutes: int

    @property
    def reason(self) -> str:
        return f"The fetch took more than {self.minutes} minutes and was stopped."

    @property
    def fix(self) -> str:
        return "Fetch again; if that fails too, keep data out of the repository."


@dataclass(frozen=True)
class GitFailed(Failure):
    code = "git.failed"
    transient = True
    error: str

    @property
    def reason(self) -> str:
        return f"Git failed: {self.error}."

    @property
    def fix(self) -> str:
        return "The log of the fetch has its whole output."


@dataclass(frozen=True)
class NoGit(Failure):
    code = "git.no_git"
    transient = True

    @property
    def reason(self) -> str:
        return "This node has no sandbox with git any more."

    @property
    def fix(self) -> str:
        return "An admin installs git, openssh-client and bubblewrap on it."


# --- the portal -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FetchCancelled(Failure):
    code = "git.cancelled"
    user: str

    @property
    def reason(self) -> str:
        return f"{self.user} cancelled this fetch."


@dataclass(frozen=True)
class FetchReplaced(Failure):
    code = "git.replaced"

    @property
    def reason(self) -> str:
        return "A newer fetch replaced this one."


@dataclass(frozen=True)
class SourceChanged(Failure):
    code = "git.source_changed"

    @property
    def reason(self) -> str:
        return "The repository of the project, or how nodes sign in there, was changed or removed meanwhile."

    @property
    def fix(self) -> str:
        return "Fetch again if the project is still bound to a repository."


@dataclass(frozen=True)
class ProjectArchived(Failure):
    code = "git.project_archived"

    @property
    def reason(self) -> str:
        return "The project was archived."

    @property
    def fix(self) -> str:
        return "Restore it, then fetch again."


@dataclass(frozen=True)
class RequesterLeft(Failure):
    """Code versions belong to who requested them."""

    code = "git.requester_left"
    user: str

    @property
    def reason(self) -> str:
        return f"{self.user}, who requested it, may not make code versions of this project any more."

    @property
    def fix(self) -> str:
        return "Another member of the project fetches again."


@dataclass(frozen=True)
class FetchLost(Failure):
    code = "git.lost"
    node: str

    @property
    def reason(self) -> str:
        return f"The node {self.node} stopped reporting during this fetch."

    @property
    def fix(self) -> str:
        return "Fetch again."


@dataclass(frozen=True)
class FetchNotTaken(Failure):
    code = "git.not_taken"
    hours: int

    @property
    def reason(self) -> str:
        return f"For {self.hours} hours no node that can fetch from Git was free."

    @property
    def fix(self) -> str:
        return "A node needs git, openssh-client and bubblewrap, or Docker, and an agent of this release. Then fetch again."


@dataclass(frozen=True)
class CodeNotAccepted(Failure):
    """The portal's judgement of the files, as of an upload."""

    code = "git.not_accepted"
    why: str

    @property
    def reason(self) -> str:
        return f"The files cannot become a code version: {self.why}"


def _listed(names: tuple[str, ...], count: int) -> str:
    rest = count - len(names)
    return ", ".join(names) + (f" and {rest} more" if rest > 0 else "")


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def _size(mib: int) -> str:
    return f"{mib / 1024:.0f} GiB" if mib >= 1024 and mib % 1024 == 0 else f"{mib:,} MiB"
