"""Which files of ``/outputs`` were not kept, and why. What the portal answers is here too: it sends these messages."""

from dataclasses import dataclass

from runners.messages import Message


@dataclass(frozen=True)
class OutputsNotKept(Message):
    code = "output.not_kept"
    first: tuple[Message, ...]
    """About the first of them."""
    more: int
    """The number of the others."""

    @property
    def text(self) -> str:
        rest = [f"{self.more} more files were not kept."] if self.more else []
        return " ".join([each.text for each in self.first] + rest)


@dataclass(frozen=True)
class FileNotKept(Message):
    code = "output.file_not_kept"
    path: str
    reason: Message

    @property
    def text(self) -> str:
        return f"{self.path} was not kept: {self.reason.text}".rstrip(".") + "."


@dataclass(frozen=True)
class OnlyFirstFiles(Message):
    code = "output.only_first_files"
    max_files: int

    @property
    def text(self) -> str:
        return f"Only the first {self.max_files:,} files of /outputs are kept."


# --- why a file was not kept ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NameNotUtf8(Message):
    code = "output.name_not_utf"
    text = "its name is not UTF-8"


@dataclass(frozen=True)
class Unreadable(Message):
    """The system gives no reason."""

    code = "output.unreadable"
    text = "it cannot be read"


@dataclass(frozen=True)
class LinkLeadsOut(Message):
    code = "output.link_leads_out"
    text = "it is a link to something outside the outputs"


@dataclass(frozen=True)
class LinkToFolder(Message):
    code = "output.link_to_folder"
    text = "it is a link to a folder, whose files are kept where they are"


@dataclass(frozen=True)
class BesideCodeTooLarge(Message):
    """Files that a job writes beside its code are kept up to a limit."""

    code = "output.beside_code_too_large"
    limit_mib: int
    max_files: int

    @property
    def text(self) -> str:
        return (
            f"of the files beside the code, only {self.max_files} and {self.limit_mib} MiB together are kept. "
            "Write it to the folder in SCHEDULEARN_OUTPUTS"
        )


@dataclass(frozen=True)
class TooLarge(Message):
    """The portal refuses it."""

    code = "output.too_large"
    limit_mib: int

    @property
    def text(self) -> str:
        return (
            f"The job's outputs would take more than {self.limit_mib} MiB together. "
            "Write less, or ask an admin for more."
        )


@dataclass(frozen=True)
class TooManyFiles(Message):
    """The portal refuses it."""

    code = "output.too_many_files"
    max_files: int

    @property
    def text(self) -> str:
        return f"A job keeps at most {self.max_files} output files. Put them into one archive."


@dataclass(frozen=True)
class BadPath(Message):
    """The portal refuses it."""

    code = "output.bad_path"
    max_length: int

    @property
    def text(self) -> str:
        return (
            f"An output's path is relative and has at most {self.max_length} characters, "
            "without '..' or control characters."
        )
