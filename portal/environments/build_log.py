"""The log of a build as pages show it."""

from portal import log_files, log_pieces
from portal.environments.builds import log_path
from portal.environments.models import Build
from portal.log_pieces import FIRST_BYTES, PIECE_BYTES, LogPiece, shown_text

__all__ = ["FIRST_BYTES", "PIECE_BYTES", "LogPiece", "end_of_log", "log_from", "shown_text", "size_of"]


def size_of(build: Build) -> int:
    """Return the offset at the end of the log."""
    return log_files.size_of(log_path(build))


def end_of_log(build: Build) -> LogPiece:
    """Return the last lines of a log."""
    return log_pieces.end_of_log(log_path(build))


def log_from(build: Build, offset: int) -> LogPiece:
    """Return what follows ``offset``, at most ``PIECE_BYTES``, in whole characters."""
    return log_pieces.log_from(log_path(build), offset)
