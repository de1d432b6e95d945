"""``manage.py rotate-keys``: new keys for what is encrypted in the database."""

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command

from portal import sealing
from portal.accounts.models import User
from portal.environments import credentials
from portal.environments.models import Registry
from portal.ops import key_rotation
from portal.ops.data_admin.hidden import HIDDEN
from portal.ops.key_rotation import SEALED_COLUMNS, RotationError, rotate_all
from portal.projects.git import keys as git_keys
from portal.secrets import keys, services
from portal.secrets.models import Secret
from tests.portal import git_world
from tests.portal.jobs_world import make_project, make_user

pytestmark = [pytest.mark.django_db, pytest.mark.both_databases]

FILES = ("git_key", "registry_key", "secrets_key")


@pytest.fixture(autouse=True)
def home(settings: Any, tmp_path: Path) -> Path:
    settings.HOME = tmp_path
    return tmp_path


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def secret(alice: User) -> Secret:
    return services.create(alice, alice, "variable", "HF_TOKEN", "hf_abcdef").row


def key_of(home: Path, name: str) -> str:
    return (home / name).read_text().strip()


def value_of(secret: Secret) -> str | None:
    return keys.unseal(Secret.objects.get(pk=secret.pk).sealed)


def do_nothing() -> None:
    """Stand for the pause."""


def test_every_column_with_encrypted_values_is_known_and_hidden() -> None:
    found = {
        (model._meta.label_lower, field.name)
        for model in apps.get_models()
        for field in model._meta.concrete_fields
        if field.name.startswith("sealed")
    }
    assert {(column.model._meta.label_lower, column.column) for column in SEALED_COLUMNS} == found
    assert all(name in HIDDEN[model] for model, name in found)


def test_every_value_gets_the_new_key_and_the_old_keys_go(home: Path, alice: User, secret: Secret) -> None:
    registry = Registry.objects.create(host="ghcr.io", sealed_token=credentials.seal("t0ken"))
    source = git_world.bind(alice, make_project(alice), git_world.SSH)
    before = {name: key_of(home, name) for name in FILES}
    rotations = {rotation.key_file: rotation for rotation in rotate_all(do_nothing)}
    assert {name: rotation.resealed for name, rotation in rotations.items()} == dict.fromkeys(FILES, 1)
    for name in FILES:
        assert key_of(home, name) != before[name] and len(sealing.keys_in(home / name)) == 1
        assert (home / name).stat().st_mode & 0o777 == 0o600
    registry.refresh_from_db()
    source.refresh_from_db()
    assert value_of(secret) == "hf_abcdef" and credentials.unseal(registry.sealed_token) == "t0ken"
    assert "OPENSSH" in (git_keys.unseal(source.sealed_key) or "")
    assert not list(home.glob("*.part"))


@pytest.mark.parametrize("last", ["write_keys", "_reseal_all", "_finish"])
@pytest.mark.parametrize("works", [0, 1])
def test_an_interrupted_rotation_is_finished_by_the_next(
    home: Path, secret: Secret, monkeypatch: pytest.MonkeyPatch, last: str, works: int
) -> None:
    """Stop at the first or second call of a step; no value is ever unreadable."""
    function = getattr(key_rotation, last)
    calls: list[Any] = []

    def stop(*args: Any) -> Any:
        calls.append(args)
        if len(calls) > works:
            raise KeyboardInterrupt
        return function(*args)

    Registry.objects.create(host="ghcr.io", sealed_token=credentials.seal("t0ken"))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(key_rotation, last, stop)
        rotate_all(do_nothing)
    assert value_of(secret) == "hf_abcdef"
    rotate_all(do_nothing)
    assert value_of(secret) == "hf_abcdef" and len(sealing.keys_in(home / "secrets_key")) == 1
    assert credentials.unseal(Registry.objects.get().sealed_token) == "t0ken"


def test_a_value_that_was_sealed_with_the_old_key_meanwhile_is_found(home: Path, secret: Secret) -> None:
    old = key_of(home, "secrets_key")

    def a_slow_request_ends() -> None:
        sealed = sealing.cipher_of((old,)).encrypt(b"the newer value").decode()
        Secret.objects.filter(pk=secret.pk).update(sealed=sealed)

    rotate_all(a_slow_request_ends)
    assert value_of(secret) == "the newer value" and old not in (home / "secrets_key").read_text()


def test_the_old_keys_stay_while_a_process_goes_on_sealing_with_them(
    home: Path, secret: Secret, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_rotation, "_reseal_all", lambda rotation: 1)
    with pytest.raises(RotationError, match="Restart the processes"):
        rotate_all(do_nothing)
    assert len(sealing.keys_in(home / "secrets_key")) == 2 and value_of(secret) == "hf_abcdef"


def test_what_cannot_be_read_is_listed_and_left(home: Path, secret: Secret) -> None:
    (home / "secrets_key").write_text("another key\n")
    sealed = Secret.objects.get().sealed
    stdout = StringIO()
    call_command("rotate-keys", pause=0, stdout=stdout)
    shown = stdout.getvalue()
    assert "1 value unreadable" in shown and f"secrets.secret.sealed {secret.pk}" in shown
    assert "git_key: there is none yet" in shown and Secret.objects.get().sealed == sealed


def test_without_its_file_a_value_is_unreadable_and_no_key_is_made(home: Path, secret: Secret) -> None:
    (home / "secrets_key").unlink()
    stdout = StringIO()
    call_command("rotate-keys", pause=0, stdout=stdout)
    assert "secrets_key: missing" in stdout.getvalue() and not (home / "secrets_key").exists()


def test_what_a_killed_rotation_left_is_deleted(home: Path, secret: Secret) -> None:
    (home / "secrets_key.x1y2.part").write_text("a new key")
    (home / "secrets_key.bak").write_text("of an admin")
    rotate_all(do_nothing)
    assert sorted(path.name for path in home.glob("secrets_key*")) == ["secrets_key", "secrets_key.bak"]


def test_one_rotation_at_a_time(home: Path, secret: Secret) -> None:
    def another() -> None:
        with pytest.raises(CommandError, match="being rotated already"):
            call_command("rotate-keys", pause=0)

    rotate_all(another)
    assert value_of(secret) == "hf_abcdef"


def test_many_rows_are_changed_in_batches(alice: User, secret: Secret, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_rotation, "BATCH", 2)
    for number in range(4):
        services.create(alice, alice, "file", f"f{number}", f"content {number}")
    assert {rotation.resealed for rotation in rotate_all(do_nothing)} == {0, 5}
    assert [value_of(row) for row in Secret.objects.filter(kind="file")] == [f"content {number}" for number in range(4)]
