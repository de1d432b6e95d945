from pathlib import Path
from typing import Any

import pytest

from portal.accounts.models import User
from portal.storage import services
from portal.storage.models import Dataset, DatasetVersion
from tests.portal.jobs_world import make_user
from tests.portal.storage_world import Uploader, make_dataset


@pytest.fixture(autouse=True)
def own_home(settings: Any, tmp_path: Path) -> Path:
    settings.HOME = tmp_path / "home"
    settings.HOME.mkdir()
    return settings.HOME


@pytest.fixture
def alice(db: None) -> User:
    return make_user("alice")


@pytest.fixture
def dataset(alice: User) -> Dataset:
    return make_dataset(alice)


@pytest.fixture
def version(alice: User, dataset: Dataset) -> DatasetVersion:
    return services.begin_version(alice, dataset)


@pytest.fixture
def sender(alice: User, version: DatasetVersion) -> Uploader:
    return Uploader(alice, version)
