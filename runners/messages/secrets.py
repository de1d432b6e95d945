"""Messages about the secrets of jobs, which never contain a value."""

from dataclasses import dataclass

from runners.messages import Message


@dataclass(frozen=True)
class FetchingSecrets(Message):
    code = "container.fetching_secrets"
    text = "fetching its secrets"


@dataclass(frozen=True)
class SecretsNotFetched(Message):
    code = "container.secrets_not_fetched"
    error: Message

    @property
    def text(self) -> str:
        return f"The secrets of the job could not be fetched: {self.error.text}"
