"""Gets the layers of environments with a recipe: from the portal, or by building them for all nodes of this kind.

A layer is a folder of packages that a job has in addition to those of its base.
"""

from collections.abc import Collection, Mapping
from typing import Any

from runners.agent.shared_environments import (
    UNUSED_SECONDS,
    BuildPortal,
    ReportedBuild,
    SharedEnvironments,
    WantedEnvironment,
)
from runners.environments.builds import BaseEnvironments, Report
from runners.environments.layers import build, store
from runners.environments.layers.base import Base, kind_of
from runners.environments.layers.recipe import Recipe
from runners.environments.layers.store import BuiltLayer
from runners.environments.preparing import PrepareError, Progress, cache_home, temporary_folder
from runners.messages.builds import FetchingLayer, SendingLayer, UnpackingLayer
from runners.messages.environment_failures import UnknownEnvironment
from runners.messages.layer_failures import BadRecipe


class Layers(SharedEnvironments):
    """The layers on this node. ``bases`` prepares what is below them."""

    def __init__(self, bases: BaseEnvironments, portal: BuildPortal) -> None:
        super().__init__(portal)
        self._bases = bases

    def has(self, digest: str) -> bool:
        """Whether a layer is here. It counts as used now."""
        if store.path_of(digest) is None:
            return False
        store.mark_used(digest)
        return True

    def _is_here(self, digest: str) -> bool:
        return store.path_of(digest) is not None

    def tidy(self, needed: Collection[str]) -> None:
        """Delete layers that neither the portal wants nor a container of this node needs, some time after their last use."""
        keep = {*self.current_digests(), *needed}
        for digest in keep:
            store.mark_used(digest)  # for other agents of this machine, which share the folder
        store.tidy(keep, UNUSED_SECONDS)

    def has_current(self, wanted: WantedEnvironment) -> bool:
        """Whether the layer that the portal wants is here, with its base."""
        return super().has_current(wanted) and self._bases.reference_of(wanted.base) is not None

    def _prepare(self, wanted: WantedEnvironment, progress: Progress) -> Report:
        if self._bases.reference_of(wanted.base) is None:
            prepared = self._bases.prepare(wanted.base, progress)
            if prepared.state != "ready":
                return self._record(Report(wanted.key, state="failed", message=prepared.message))
        base = self._bases.base_of(wanted.base)
        if base is None:
            raise PrepareError(UnknownEnvironment(wanted.base))
        claim = self._portal.claim_environment(wanted.key, kind_of(base))
        match claim["state"]:
            case "ready":
                self.fetch(str(claim["digest"]), progress)
                return self._ready(wanted, str(claim["digest"]), final=claim.get("final") is not False)
            case "build":
                return self._ready(wanted, self._build(claim, base, progress))
            case _:
                return self._answered(wanted, claim)

    def _ready(self, wanted: WantedEnvironment, digest: str, *, final: bool = True) -> Report:
        store.mark_used(digest)
        return super()._ready(wanted, digest, final=final)

    # --- fetching ----------------------------------------------------------------------------------------------------

    def fetch(self, digest: str, progress: Progress) -> None:
        """Fetch a layer from the portal, unless it is here. Raises PrepareError or PortalError."""
        if store.path_of(digest) is not None:
            return
        with (
            self._fetching_of(digest, progress) as report,
            temporary_folder(cache_home(), "schedulearn-layer-") as folder,
        ):
            if store.path_of(digest) is not None:  # another thread has fetched it
                return
            archive = folder / "layer.tar"

            def arrived(done: int, total: int) -> None:
                report(int(90 * done / max(1, total)), FetchingLayer(done >> 20, total >> 20))

            with archive.open("wb") as file:
                sha256 = self._portal.fetch_layer(digest, file, arrived)
            report(92, UnpackingLayer())
            store.unpack(archive, digest, sha256)

    # --- building ----------------------------------------------------------------------------------------------------

    def _build(self, claim: Mapping[str, Any], base: Base, progress: Progress) -> str:
        """Build a layer for all nodes of this kind, send it, and return its digest."""
        with self._build_of(int(claim["build"]), progress) as reported:
            try:
                recipe = Recipe.from_json(claim["recipe"])
            except ValueError as error:
                raise PrepareError(BadRecipe(str(error))) from error
            fresh = bool(claim.get("fresh"))
            layer = build.build_layer(recipe, base, reported.log, reported.progress, fresh=fresh)
            send(layer, reported)
        return layer.digest


def send(layer: BuiltLayer, reported: ReportedBuild) -> None:
    """Send a layer to the portal, which ends its build."""
    with temporary_folder(cache_home(), "schedulearn-layer-") as folder:
        packed = store.pack(layer.digest, folder / "layer.tar")
        reported.send_file(packed.path, SendingLayer)
        reported.end(
            {
                "state": "done",
                "digest": layer.digest,
                "sha256": packed.sha256,
                "lock": layer.lock,
                "unpacked_bytes": layer.bytes,
                "modules": list(layer.modules),
            }
        )
