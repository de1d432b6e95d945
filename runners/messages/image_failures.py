"""Why an image that a project named cannot be used, and what would fix it."""

from dataclasses import dataclass

from runners.messages.environment_failures import Failure

OWN_IMAGES_PAGE = "the page Images of the admin area"


# --- the registry -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageNotAllowed(Failure):
    """An admin has removed what allowed it."""

    code = "image.not_allowed"
    image: str

    @property
    def reason(self) -> str:
        return f"Images like {self.image} are not allowed any more."

    @property
    def fix(self) -> str:
        return f"An admin may allow it again on {OWN_IMAGES_PAGE}; else choose another environment."


@dataclass(frozen=True)
class NoSuchImage(Failure):
    code = "image.not_found"
    image: str

    @property
    def reason(self) -> str:
        return f"The registry has no image {self.image}, or shows it only to users who sign in."

    @property
    def fix(self) -> str:
        return (
            "Check its name and tag. If it is private, an admin adds a user and a token for the registry on "
            f"{OWN_IMAGES_PAGE}. Then choose Build again."
        )


@dataclass(frozen=True)
class SignInRefused(Failure):
    code = "image.sign_in_refused"
    image: str
    registry: str
    user: str = ""
    """Empty when nothing was sent."""

    @property
    def reason(self) -> str:
        who = f"the user {self.user} with the stored token" if self.user else "users who have not signed in"
        return f"The registry {self.registry} does not give {self.image} to {who}."

    @property
    def fix(self) -> str:
        what = "corrects the user and the token" if self.user else "adds a user and a token"
        return f"An admin {what} for {self.registry} on {OWN_IMAGES_PAGE}; then choose Build again."


@dataclass(frozen=True)
class RegistryAway(Failure):
    code = "image.registry_away"
    transient = True
    registry: str
    error: str

    @property
    def reason(self) -> str:
        return f"The registry {self.registry} cannot be reached from this node: {self.error}"

    @property
    def fix(self) -> str:
        return "Check the network of the node and its engine's proxy; it is tried again."


@dataclass(frozen=True)
class RegistryWithoutTls(Failure):
    """The registry speaks plain HTTP, and the engine does not allow that."""

    code = "image.registry_without_tls"
    transient = True  # of this node
    registry: str

    @property
    def reason(self) -> str:
        return f"The registry {self.registry} speaks HTTP without encryption, which this node's Docker Engine refuses."

    @property
    def fix(self) -> str:
        return (
            "Give the registry a certificate. If the network is trusted, an admin adds "
            f'"insecure-registries": ["{self.registry}"] to /etc/docker/daemon.json on each node and restarts the engine.'
        )


@dataclass(frozen=True)
class InsecureNotAllowed(Failure):
    """The engine would pull without encryption, and no admin has allowed that."""

    code = "image.insecure_not_allowed"
    transient = True  # of this node
    registry: str

    @property
    def reason(self) -> str:
        return (
            f"This node's Docker Engine accepts the registry {self.registry} without encryption or a valid certificate."
        )

    @property
    def fix(self) -> str:
        return f"An admin allows that for {self.registry} on {OWN_IMAGES_PAGE}, or removes it from insecure-registries."


@dataclass(frozen=True)
class BadCertificate(Failure):
    code = "image.bad_certificate"
    transient = True  # of this node
    registry: str
    error: str

    @property
    def reason(self) -> str:
        return f"This node does not trust the certificate of the registry {self.registry}: {self.error}"

    @property
    def fix(self) -> str:
        return f"Put the certificate of its authority into /etc/docker/certs.d/{self.registry}/ca.crt on each node."


@dataclass(frozen=True)
class OtherPlatform(Failure):
    code = "image.other_platform"
    image: str
    platforms: tuple[str, ...]
    needed: str

    @property
    def reason(self) -> str:
        found = ", ".join(self.platforms)
        return f"The image {self.image} is made for {found or 'another platform'}, and this node needs {self.needed}."

    @property
    def fix(self) -> str:
        return f"Build it for {self.needed} as well (docker buildx build --platform {self.needed}), then push it again."


@dataclass(frozen=True)
class ImageTooLarge(Failure):
    code = "image.too_large"
    transient = True
    image: str
    needed_mib: int
    free_mib: int

    @property
    def reason(self) -> str:
        return (
            f"The image {self.image} needs about {self.needed_mib} MiB, and {self.free_mib} MiB are free on the disk of this "
            "node's Docker Engine."
        )

    @property
    def fix(self) -> str:
        return "Make room there (docker system prune), or make the image smaller."


@dataclass(frozen=True)
class PullFailed(Failure):
    code = "image.pull_failed"
    transient = True
    image: str
    error: str

    @property
    def reason(self) -> str:
        return f"The image {self.image} could not be downloaded: {self.error}"

    @property
    def fix(self) -> str:
        return "It is tried again; if it stays so, try docker pull on the node."


@dataclass(frozen=True)
class BadImageName(Failure):
    code = "image.bad_name"
    image: str

    @property
    def reason(self) -> str:
        return f"“{self.image}” is not the full name of an image."


# --- what jobs need ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoShell(Failure):
    code = "image.no_shell"
    image: str

    @property
    def reason(self) -> str:
        return f"The image {self.image} has no sh, so no command can be run in it."

    @property
    def fix(self) -> str:
        return (
            "Build it from an image of a distribution, such as python:3.12-slim, instead of an empty or distroless one."
        )


@dataclass(frozen=True)
class NoPython(Failure):
    code = "image.no_python"
    image: str
    oldest: str

    @property
    def reason(self) -> str:
        return f"The image {self.image} has no python or python3 in its PATH."

    @property
    def fix(self) -> str:
        return f"Install Python {self.oldest} or newer in it (Debian and Ubuntu: apt-get install python3)."


@dataclass(frozen=True)
class PythonTooOld(Failure):
    code = "image.python_too_old"
    image: str
    found: str
    oldest: str

    @property
    def reason(self) -> str:
        return f"The image {self.image} has Python {self.found}, and jobs need {self.oldest} or newer."

    @property
    def fix(self) -> str:
        return f"Build it from an image with Python {self.oldest} or newer; python3 in its PATH has to be that one."


@dataclass(frozen=True)
class HasVolumes(Failure):
    code = "image.has_volumes"
    image: str
    folders: tuple[str, ...]

    @property
    def reason(self) -> str:
        folders = ", ".join(self.folders)
        return f"The image {self.image} declares VOLUME {folders}: jobs could fill the node's disk there, past their limit."

    @property
    def fix(self) -> str:
        return (
            "Remove VOLUME from its Dockerfile, or build from a base image without it. Jobs write to /outputs and /tmp."
        )


@dataclass(frozen=True)
class DoesNotStart(Failure):
    code = "image.does_not_start"
    image: str
    error: str

    @property
    def reason(self) -> str:
        return f"What starts jobs does not run in the image {self.image}: {self.error}"

    @property
    def fix(self) -> str:
        return "It must run with any user id and a read-only file system, as docker run --read-only --user 12345:12345 does."


# --- images that come from another node ------------------------------------------------------------------------------


@dataclass(frozen=True)
class DamagedImage(Failure):
    code = "image.damaged"
    transient = True
    why: str

    @property
    def reason(self) -> str:
        return f"The image that came from the portal is damaged: {self.why}."

    @property
    def fix(self) -> str:
        return "It is fetched again; if it stays so, choose Build again on the page of the environment."
