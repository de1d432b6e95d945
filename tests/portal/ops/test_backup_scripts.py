"""The scripts of docs/operations/backup.md take the key of secrets along encrypted only, and get it back."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs/operations/backup.md"
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
COMMANDS = [line.strip() for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()]
BACKUP, RESTORE = "openssl enc -aes-256-cbc -pbkdf2 -salt", "openssl enc -d -aes-256-cbc -pbkdf2"
KEY = "the key of the secrets"


@pytest.mark.parametrize("block", BLOCKS)
def test_a_script_is_valid(block: str) -> None:
    subprocess.run(["sh", "-n"], input=block, text=True, check=True)


def test_each_copy_of_the_data_folder_leaves_the_key_out() -> None:
    copies = [
        line
        for line in COMMANDS
        if re.search(r"\b(rsync|tar|cp) .*(/var/lib/schedulearn/|-C /var/lib/schedulearn|\bvar/ )", line)
        and not re.search(r'rsync -a --delete|"\$from|find /var/lib', line)
    ]
    assert len(copies) == 3 and all("secrets_key*" in line for line in copies), copies


def test_each_backup_encrypts_it_and_each_restore_decrypts_it() -> None:
    assert [sum(words in line for line in COMMANDS) for words in (BACKUP, RESTORE)] == [3, 3]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_key_of_one_machine_comes_back(tmp_path: Path) -> None:
    home, saved = tmp_path / "var", tmp_path / "saved"
    home.mkdir()
    saved.mkdir()
    (home / "secrets_key").write_text(KEY)
    (tmp_path / "schedulearn-passphrase").write_text("correct horse\n")

    def run(words: str) -> None:
        line = next(line for line in COMMANDS if words in line and "var/secrets_key" in line and "$HOME" in line)
        script = line.replace("/srv/backup", str(saved))
        environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        subprocess.run(["sh", "-euc", script], cwd=tmp_path, env=environment, check=True)

    run(BACKUP)
    assert KEY.encode() not in (saved / "secrets_key.enc").read_bytes()
    (home / "secrets_key").unlink()
    run(RESTORE)
    assert (home / "secrets_key").read_text() == KEY and (home / "secrets_key").stat().st_mode & 0o777 == 0o600
