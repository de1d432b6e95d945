"""From uv's real outputs to the line that is wrong."""

import pytest

from runners.environments.layers.explaining import Question, explain_output
from runners.host.egress import Connection
from runners.messages.environment_failures import Failure
from runners.messages.layer_failures import (
    CommandFailed,
    ContradictsBase,
    ContradictsItself,
    HashMismatch,
    HostNotAllowed,
    IndexAway,
    NeedsOtherPython,
    NoFittingWheel,
    NoMemoryLeft,
    NoSpaceLeft,
    NoSuchPackage,
    NoSuchVersion,
    OnlySource,
    SourceBuildFailed,
    Unresolvable,
)
from tests.runners.environments.layers import uv_outputs as outputs

BASE = ("numpy==2.4.6", "pip==26.3", "torch==2.13.0+cpu")
KIND = "Python 3.11, x86_64, CPU"
REFUSED = Connection("files.example", 443, refusal="this host is not allowed")


def question(*lines: str) -> Question:
    return Question(lines, BASE, "3.11", KIND)


@pytest.mark.parametrize(
    ("output", "lines", "failure"),
    [
        (outputs.BASE_DIRECT, ("rich", "torch==2.9.1"), ContradictsBase("torch==2.9.1", "torch", "2.13.0+cpu")),
        (outputs.BASE_RANGE, ("numpy<2", "rich"), ContradictsBase("numpy<2", "numpy", "2.4.6")),
        (
            outputs.BASE_THROUGH_ANOTHER,
            ("rich", "torchvision==0.20.0"),
            ContradictsBase("torchvision==0.20.0", "torch", "2.13.0+cpu", "torch==2.5.0"),
        ),
        (outputs.BASE_THROUGH_ANY_VERSION, ("NeedNP",), ContradictsBase("NeedNP", "numpy", "2.4.6", "numpy<2")),
        (outputs.NO_PACKAGE, ("rich", "nosuchpackage_xyzzy.1"), NoSuchPackage("nosuchpackage-xyzzy-1")),
        (outputs.NO_PACKAGE_OF_ANOTHER, ("rich", "ddd>=1"), NoSuchPackage("zzzznot", "ddd>=1")),
        (outputs.NO_VERSION, ("rich==99.1",), NoSuchVersion("rich==99.1")),
        (outputs.ONLY_SOURCE, ("gym==0.21.0",), OnlySource("gym==0.21.0")),
        (outputs.ONLY_SOURCE_EVER, ("flash_attn",), OnlySource("flash-attn")),
        (outputs.ONLY_SOURCE_OF_ANOTHER, ("ipython==7.0",), OnlySource("simplegeneric==0.8.1", "ipython==7.0")),
        (
            outputs.OTHER_ABI,
            ("tensorflow==2.10.0",),
            NoFittingWheel("tensorflow==2.10.0", KIND, "cp37m, cp38, cp39, cp310"),
        ),
        (outputs.NEEDS_PYTHON, ("useit",), NeedsOtherPython("newpy", ">=3.13", "3.11")),
        (outputs.CONNECTION_REFUSED, ("six",), IndexAway("http://127.0.0.1:9", "Connection refused (os error 111)")),
        (
            outputs.NO_SUCH_HOST,
            ("six",),
            IndexAway("https://index.example", "failed to lookup address information: Name or service not known"),
        ),
        (
            outputs.SERVER_ERROR,
            ("six",),
            IndexAway("http://127.0.0.1:8912", "HTTP status server error (503 Service Unavailable)"),
        ),
        (outputs.HASH_MISMATCH, ("six",), HashMismatch("six==1.0")),
        (outputs.NO_SPACE, ("pandas",), NoSpaceLeft()),
        ("memory allocation of 4096 bytes failed\n", ("pandas",), NoMemoryLeft()),
        ("g++: fatal error: Killed signal terminated program cc1plus\n", ("pandas",), NoMemoryLeft()),
        ("error: something new\n", ("pandas",), CommandFailed("error: something new")),
    ],
)
def test_a_failure_of_uv_becomes_its_cause(output: str, lines: tuple[str, ...], failure: Failure) -> None:
    assert explain_output(output, question(*lines)) == failure


def test_the_sentence_names_the_line_and_the_ways_out() -> None:
    text = explain_output(outputs.BASE_DIRECT, question("torch==2.9.1")).text
    assert text == (
        "torch==2.9.1 contradicts torch 2.13.0+cpu of this base. Change the line, or build a full environment, which has "
        "no base."
    )


def test_lines_that_contradict_each_other_are_named() -> None:
    direct = explain_output(outputs.LIST_DIRECT, question("rich==13.0.0", "six", "rich>=14"))
    assert isinstance(direct, ContradictsItself) and direct.lines == ("rich==13.0.0", "rich>=14")
    through = explain_output(outputs.LIST_THROUGH_OTHERS, question("six", "aaa", "bbb"))
    assert isinstance(through, ContradictsItself) and through.lines == ("aaa", "bbb")
    assert "ccc>=2" in through.text


def test_a_package_for_another_system_is_one_without_a_wheel() -> None:
    found = explain_output(outputs.OTHER_PLATFORM, question("pywin32"))
    assert isinstance(found, NoFittingWheel) and found.package.startswith("pywin32") and KIND in found.text


def test_a_failed_build_quotes_its_last_lines() -> None:
    found = explain_output(outputs.BUILD_FAILED, question("gym==0.21.0"))
    assert isinstance(found, SourceBuildFailed) and found.package == "gym==0.21.0"
    assert "error in gym setup command" in found.lines[-1] and "error in gym" in found.text


def test_a_refused_host_is_the_cause_of_what_cannot_be_fetched() -> None:
    for output in (outputs.SERVER_ERROR, outputs.NO_PACKAGE):
        found = explain_output(output, question("six"), (REFUSED,))
        assert found == HostNotAllowed("files.example", "this host is not allowed")
    assert isinstance(explain_output(outputs.BASE_DIRECT, question("torch==2.9.1"), (REFUSED,)), ContradictsBase)
    assert isinstance(explain_output(outputs.BUILD_FAILED, question("gym"), (REFUSED,)), SourceBuildFailed)


@pytest.mark.parametrize(
    ("package", "sentence"),
    [
        ("horovod==0.28.1", "Choose a base that has Horovod"),
        ("horovod", "Choose a base that has Horovod"),
        ("horovod-tools>=1", "Take a version that has a wheel"),
    ],
)
def test_horovod_that_another_package_needs_comes_from_a_base(package: str, sentence: str) -> None:
    assert sentence in OnlySource(package, "petastorm").text


def test_a_hint_of_uv_is_never_the_cause() -> None:
    hint = "hint: Build failures usually indicate an error of the package or of its environment\n"
    found = explain_output(f"compiling\nfatal error: Python.h: No such file\nstopped\n\n{hint}", question("demo"))
    assert found == CommandFailed("fatal error: Python.h: No such file")
    assert explain_output(f"stopped\n\n{hint}", question("demo")) == CommandFailed("stopped")


def test_a_refused_port_is_named_unless_it_is_one_of_the_web() -> None:
    refused = Connection("devpi.lab.example", 3141, refusal="this host is not allowed")
    found = explain_output(outputs.SERVER_ERROR, question("six"), (refused,))
    assert found == HostNotAllowed("devpi.lab.example:3141", "this host is not allowed")


def test_a_host_that_does_not_answer_is_named() -> None:
    away = Connection("files.example", 443, error="Connection refused")
    output = "error: Failed to fetch: https://files.example/x\n  cause: tunnel error: unsuccessful\n"
    assert explain_output(output, question("six"), (away,)) == IndexAway("files.example:443", "Connection refused")
    assert isinstance(explain_output(output, question("six"), (away, REFUSED)), HostNotAllowed)


def test_a_proof_about_nothing_in_the_list_is_quoted() -> None:
    output = "error: No solution found when resolving dependencies\n  cause: Because it is so.\n"
    assert explain_output(output, question("six")) == Unresolvable("Because it is so.")


def test_only_what_may_pass_by_itself_is_transient() -> None:
    passing = (outputs.SERVER_ERROR, outputs.NO_SPACE, outputs.NO_SUCH_HOST)
    lasting = (
        outputs.BASE_DIRECT,
        outputs.NO_PACKAGE,
        outputs.ONLY_SOURCE,
        outputs.BUILD_FAILED,
        outputs.HASH_MISMATCH,
    )
    assert all(explain_output(each, question("six")).transient for each in passing)
    assert not any(explain_output(each, question("six")).transient for each in lasting)
