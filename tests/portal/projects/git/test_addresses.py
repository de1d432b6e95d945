"""Which addresses and branches are understood, and how the others are refused."""

import pytest

from portal.projects.git.addresses import commit_link, read_address, read_branch
from portal.refused import Refused
from runners.sources.inside.submodules import PLAIN
from runners.sources.order import BRANCH

COMMIT = "1f" * 20


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        ("https://github.com/lab/train.git", "https://github.com/lab/train.git"),
        (" HTTPS://GitHub.com/lab/train/ ", "https://github.com/lab/train"),
        ("https://github.com:443/lab/train", "https://github.com/lab/train"),
        ("https://git.example.org:8443/a/b/c.git", "https://git.example.org:8443/a/b/c.git"),
        ("git@github.com:lab/train.git", "ssh://git@github.com/lab/train.git"),
        ("github.com:lab/train.git", "ssh://git@github.com/lab/train.git"),
        ("ssh://git.example.org:22/lab/train.git", "ssh://git@git.example.org/lab/train.git"),
        ("ssh://gitea@git.example.org:2222/lab/train.git", "ssh://gitea@git.example.org:2222/lab/train.git"),
        ("ssh://git@192.0.2.10/srv/train.git", "ssh://git@192.0.2.10/srv/train.git"),
    ],
)
def test_addresses_have_one_form_which_agents_accept(typed: str, read: str) -> None:
    assert str(read_address(typed)) == read
    assert str(read_address(read)) == read, "it is stable"
    assert PLAIN.fullmatch(read)


@pytest.mark.parametrize(
    ("typed", "why"),
    [
        ("", "Enter the address"),
        ("ext::sh -c touch% /tmp/x", "spaces"),
        ("ext::sh", "run programs"),
        ("fd::17/x", "run programs"),
        ("file:///etc/passwd", "file://"),
        ("git://github.com/lab/train.git", "git://"),
        ("http://github.com/lab/train.git", "http://"),
        ("ftp://github.com/lab/train.git", "ftp://"),
        ("/etc/passwd", "https:// or ssh://"),
        ("../train", "https:// or ssh://"),
        ("--upload-pack=touch", "dash"),
        ("-oProxyCommand=touch:x", "dash"),
        ("ssh://-oProxyCommand=touch/x", "not the name of a host"),
        ("ssh://git@-oProxyCommand=x/y", "not the name of a host"),
        ("ssh://-l@example.org/x", "user of an ssh address"),
        ("git@example.org:-x", "dash"),
        ("https://github.com/-x/train", "dash"),
        ("https://github.com/lab/../../x", "dots"),
        ("https://github.com//x", "empty"),
        ("https://github.com/", "path of a repository"),
        ("https://github.com", "path of a repository"),
        ("https://robot:t0ken@github.com/lab/train", "Leave user and token out"),
        ("https://t0ken@github.com/lab/train", "Leave user and token out"),
        ("ssh://git:secret@github.com/lab/train", "password"),
        ("https://github.com/lab/train?x=1", "no ? and no #"),
        ("https://github.com/lab/train#main", "no ? and no #"),
        ("https://github.com/lab/tr$(touch x)", "spaces"),
        ("https://github.com/lab/tr$(touch)", "path of a repository"),
        ("https://github.com/lab/tr;touch", "path of a repository"),
        ("https://github.com/lab/a\nb", "one line"),
        ("https://github.com/lab/a\x00b", "one line"),
        ("https://git\u202ehub.com/lab/train", "one line"),
        ("https://localhost/lab/train", "localhost"),
        ("https://127.0.0.1/lab/train", "the node itself"),
        ("https://169.254.169.254/latest/meta-data", "the node itself"),
        ("https://0x7f000001/lab/train", "four numbers"),
        ("https://2130706433/lab/train", "four numbers"),
        ("https://[::1]/lab/train", "name of the host"),
        ("https://github.com:0/lab/train", "port"),
        ("https://github.com:99999/lab/train", "port"),
        ("https://*.example.org/lab/train", "without a star"),
        ("https://example.org/" + "a" * 600, "at most 500"),
    ],
)
def test_hostile_addresses_are_refused_with_a_sentence(typed: str, why: str) -> None:
    with pytest.raises(Refused, match=why.replace("?", r"\?")) as refusal:
        read_address(typed)
    assert refusal.value.field == "address"


@pytest.mark.parametrize("branch", ["main", "feature/new-net", "release-1.2", "v2.x", "user_1/été"])
def test_branches_that_agents_accept(branch: str) -> None:
    assert read_branch(f" {branch} ") == branch and read_branch(f"refs/heads/{branch}") == branch
    assert BRANCH.fullmatch(branch)


@pytest.mark.parametrize(
    "branch",
    [
        *(
            "",
            "-x",
            "--upload-pack=touch",
            "a b",
            "a..b",
            "a~1",
            "a^",
            "a:b",
            "a?",
            "a*",
            "a[b",
            "a\\b",
            "a@{1}",
            "/a",
            "a/",
        ),
        *(
            "a//b",
            ".a",
            "a/.b",
            "a.",
            "a.lock",
            "a.lock/b",
            "@",
            "a\x00b",
            "a\x7fb",
            "a\nb",
            "\u202emain",
            "x" * 201,
            "+main",
        ),
    ],
)
def test_other_names_are_no_branches(branch: str) -> None:
    with pytest.raises(Refused) as refusal:
        read_branch(branch)
    assert refusal.value.field == "branch"


def test_links_to_commits_of_known_software() -> None:
    github = read_address("git@github.com:lab/train.git")
    assert commit_link(github, COMMIT) == f"https://github.com/lab/train/commit/{COMMIT}"
    own = read_address("https://git.example.org:8443/lab/train.git")
    assert commit_link(own, COMMIT) == ""
    assert commit_link(own, COMMIT, "gitlab") == f"https://git.example.org:8443/lab/train/-/commit/{COMMIT}"
    by_ssh = read_address("ssh://git@git.example.org:2222/lab/train.git")
    assert commit_link(by_ssh, COMMIT, "gitea") == f"https://git.example.org/lab/train/commit/{COMMIT}"
