"""The packages that the form for a new job offers to install."""

from typing import Any

import pytest
from django.test import Client

from portal.accounts.models import AuditEntry, User
from portal.environments.models import Environment
from portal.jobs import package_offers
from portal.jobs.models import Job
from portal.jobs.package_offers import offer_for
from portal.projects.models import CodeVersion, Membership, Project
from portal.refused import Refused
from tests.portal.jobs_world import make_environment, make_job, make_node, make_project, make_user, place

pytestmark = pytest.mark.django_db

LIST = {
    "path": "requirements.txt",
    "kind": "requirements",
    "lines": ["pandas>=2", "rich"],
    "constraints": [],
    "refused": [{"line": 3, "text": "-e .", "why": "Your upload is importable already.", "path": "requirements.txt"}],
    "notes": [],
    "python": "",
    "indexes": [],
}


@pytest.fixture
def alice() -> User:
    return make_user("alice")


@pytest.fixture
def project(alice: User) -> Project:
    return make_project(alice)


@pytest.fixture
def base() -> Environment:
    return make_environment("own-base", ("torch", "numpy"))


def upload(project: Project, imports: tuple[str, ...], *lists: dict[str, Any]) -> CodeVersion:
    guess = {
        "imports": {name: ["train.py", number] for number, name in enumerate(imports, 1)},
        "package_lists": list(lists),
        "entry": "train.py",
        "launcher": "command",
    }
    return CodeVersion.objects.create(
        project=project,
        number=1,
        sha256="0" * 64,
        size=1,
        guess=guess,
        upload_name="a.zip",
        created_by=project.created_by,
    )


def test_a_list_of_the_upload_is_offered(project: Project, base: Environment) -> None:
    code = upload(project, ("torch", "pandas"), LIST)
    offer = offer_for(code, base, [base])
    assert [each.path for each in offer.lists] == ["requirements.txt"]
    assert [each["module"] for each in offer.missing] == ["pandas"] and not offer.is_empty


def test_what_the_code_imports_is_offered_without_a_list(project: Project, base: Environment) -> None:
    offer = offer_for(upload(project, ("torch", "cv2", "somenet", "utils")), base, [base])
    assert [each.package for each in offer.certain] == ["opencv-python-headless"]
    assert [each.package for each in offer.guessed] == ["somenet"]
    assert offer.unknown == ["utils"]


def test_a_module_that_a_refused_line_names_is_neither_guessed_nor_called_a_file(
    project: Project, base: Environment
) -> None:
    """It is named with the line, whose package on the index, if there is one, may be another."""
    lines = ["git+https://git.example.org/lab/some-net.git@v2", "metrics @ git+ssh://git.example.org/m", "-e ./sub"]
    refused = [{"line": n, "text": text, "why": "No.", "path": "requirements.txt"} for n, text in enumerate(lines, 1)]
    code = upload(project, ("some_net", "metrics", "utils", "othernet"), {**LIST, "refused": refused})
    offer = offer_for(code, base, [base])
    assert {module: line.line for module, line in offer.refused_imports.items()} == {"some_net": 1, "metrics": 2}
    assert offer.unknown == ["utils"] and [each.package for each in offer.guessed] == ["othernet"]


def test_another_environment_that_has_everything_is_named(project: Project, base: Environment) -> None:
    more = make_environment("more", ("torch", "numpy", "pandas"))
    without_torch = make_environment("tables", ("pandas", "numpy"))
    offer = offer_for(upload(project, ("numpy", "pandas")), base, [base, without_torch, more])
    assert offer.others == [more]


def test_nothing_is_offered_to_code_that_lacks_nothing(project: Project, base: Environment) -> None:
    assert offer_for(upload(project, ("torch",)), base, [base]).is_empty


def test_a_list_whose_packages_are_there_is_not_offered_again(alice: User, project: Project, base: Environment) -> None:
    code = upload(project, ("torch", "pandas"), LIST)
    made = package_offers.install(alice, code, base, "requirements.txt")
    offer = offer_for(code, made, [base, made])
    assert not offer.lists and [each.path for each in offer.installed_lists] == ["requirements.txt"]


def test_what_a_copied_job_lacked_is_offered_too(alice: User, project: Project, base: Environment) -> None:
    """Libraries check for others only when they are used, which no inspection of the code shows."""
    code = upload(project, ("torch",))
    job = make_job(project)
    attempt = place(job, list(make_node().gpus.all())[:1])
    attempt.cause = {"code": "import_error", "parameters": {"module": "jsonargparse"}, "detail": ""}
    attempt.save()
    offer = offer_for(code, base, [base], job)
    assert [each["module"] for each in offer.missing] == ["jsonargparse"]
    assert [each.package for each in offer.guessed] == ["jsonargparse"]
    made = package_offers.install(alice, code, base, package_offers.IMPORTS, ["jsonargparse"], job)
    assert made.lines == ["jsonargparse"]
    assert offer_for(code, made, [base, made], job).is_empty


@pytest.mark.parametrize(
    ("named", "proposed"), [("scikit-image", ("scikit-image", False)), ("flux-lib", ("flux-lib", True))]
)
def test_a_package_that_a_library_named_in_a_copied_job_is_offered(
    project: Project, base: Environment, named: str, proposed: tuple[str, bool]
) -> None:
    code = upload(project, ("torch",))
    job = make_job(project)
    attempt = place(job, list(make_node().gpus.all())[:1])
    attempt.cause = {"code": "import_error", "parameters": {"module": named}, "detail": ""}
    attempt.save()
    assert [(each.package, each.guessed) for each in offer_for(code, base, [base], job).proposed] == [proposed]


def test_the_copied_job_is_read_once_for_all_environments(
    project: Project, base: Environment, django_assert_num_queries: Any
) -> None:
    code, job = upload(project, ("pandas",)), make_job(project)
    others = [Environment(key=f"other-{number}", title="Other", packages=["torch"]) for number in range(5)]
    with django_assert_num_queries(2):  # the settings for packages, and the job's last attempt
        offer_for(code, base, [base, *others], job)


class TestInstall:
    def test_it_makes_an_environment_of_the_project(self, alice: User, project: Project, base: Environment) -> None:
        code = upload(project, ("pandas",), LIST)
        made = package_offers.install(alice, code, base, "requirements.txt")
        assert (made.project, made.base, made.lines, made.created_by) == (project, base, ["pandas>=2", "rich"], alice)
        assert made.requested_at is not None and made.recipe and set(base.packages) <= set(made.packages)
        assert AuditEntry.objects.filter(action="environment.create").count() == 1

    def test_a_second_click_makes_no_second_one(self, alice: User, project: Project, base: Environment) -> None:
        code = upload(project, ("pandas",), LIST)
        first = package_offers.install(alice, code, base, "requirements.txt")
        assert package_offers.install(alice, code, base, "requirements.txt") == first

    def test_lines_are_added_to_those_of_the_chosen_environment(
        self, alice: User, project: Project, base: Environment
    ) -> None:
        """Those of the same package are replaced."""
        code = upload(project, ("pandas",), LIST)
        vision = Environment.objects.create(
            key="vision", title="Vision", base=base, lines=["torchvision==0.28.0", "Pandas==1.0"], recipe="r"
        )
        made = package_offers.install(alice, code, vision, "requirements.txt")
        assert (made.base, made.lines) == (base, ["torchvision==0.28.0", "pandas>=2", "rich"])

    def test_guessed_packages_need_a_tick(self, alice: User, project: Project, base: Environment) -> None:
        code = upload(project, ("yaml", "somenet"))
        assert package_offers.install(alice, code, base, package_offers.IMPORTS).lines == ["pyyaml"]
        assert package_offers.install(alice, code, base, package_offers.IMPORTS, ["somenet"]).lines == [
            "somenet",
            "pyyaml",
        ]

    def test_only_what_the_code_imports_can_be_ticked(self, alice: User, project: Project, base: Environment) -> None:
        code = upload(project, ("somenet",))
        with pytest.raises(Refused, match="Tick"):
            package_offers.install(alice, code, base, package_offers.IMPORTS, ["evil"])

    def test_horovod_comes_from_a_base_that_has_it(self, alice: User, project: Project, base: Environment) -> None:
        code = upload(project, ("horovod",), {**LIST, "lines": ["horovod", "rich"]})
        with_it = make_environment("own-horovod", ("torch", "numpy", "horovod"))
        Environment.objects.exclude(pk__in=(base.pk, with_it.pk)).update(retired=True)
        made = package_offers.install(alice, code, base, "requirements.txt")
        assert (made.base, made.lines) == (with_it, ["rich"])
        bare = Environment.objects.create(key="full", title="Full", lines=["torch==2.13.0"], recipe="r")
        full = package_offers.install(alice, code, bare, "requirements.txt")
        assert (full.base, full.lines, full.horovod) == (None, ["torch==2.13.0", "rich"], True)

    def test_an_unknown_list_is_refused(self, alice: User, project: Project, base: Environment) -> None:
        with pytest.raises(Refused, match="no package list"):
            package_offers.install(alice, upload(project, (), LIST), base, "/etc/passwd")

    def test_viewers_install_nothing(self, project: Project, base: Environment) -> None:
        bob = make_user("bob")
        Membership.objects.create(project=project, user=bob, role="viewer")
        with pytest.raises(Refused, match="members"):
            package_offers.install(bob, upload(project, (), LIST), base, "requirements.txt")


class TestPage:
    def notice(self, user: User, code: CodeVersion) -> str:
        client = Client()
        client.force_login(user)
        page = " ".join(client.get(f"/jobs/new?code={code.pk}&environment=own-base").content.decode().split())
        return page[page.index('<div id="warnings"') : page.index("Where, and for how long")]

    def test_modules_that_only_functions_import_are_no_warning(
        self, alice: User, project: Project, base: Environment
    ) -> None:
        Environment.objects.exclude(pk=base.pk).update(retired=True)
        code = upload(project, ("torch", "wandb"))
        code.guess["in_functions"] = ["wandb"]
        code.save()
        notice = self.notice(alice, code)
        assert "only inside a function: the job fails only if that runs" in notice
        assert "notice packages" in notice and "notice warning packages" not in notice

    def test_one_module_that_is_always_imported_is_a_warning(
        self, alice: User, project: Project, base: Environment
    ) -> None:
        Environment.objects.exclude(pk=base.pk).update(retired=True)
        code = upload(project, ("torch", "wandb", "rich"))
        code.guess["in_functions"] = ["wandb"]
        code.save()
        notice = self.notice(alice, code)
        assert "notice warning packages" in notice and notice.count("only inside a function") == 1

    @pytest.mark.parametrize(
        ("imports", "texts"),
        [
            (("rich",), ("The package is <code>rich</code>.", "Install this package </button>")),
            (("rich", "tqdm"), ("The packages are <code>", "Install these packages </button>")),
            (("rich", "somenet"), ("The package is <code>", "Install this package and what is ticked </button>")),
            (("somenet",), ("Install what is ticked </button>",)),
        ],
    )
    def test_one_package_is_written_in_the_singular(
        self, alice: User, project: Project, base: Environment, imports: tuple[str, ...], texts: tuple[str, ...]
    ) -> None:
        Environment.objects.exclude(pk=base.pk).update(retired=True)
        notice = self.notice(alice, upload(project, imports))
        assert all(text in notice for text in texts)

    @pytest.mark.parametrize(
        ("imports", "legend"),
        [
            (("somenet",), "No known package has this module. If it is a file of yours, upload it with the code."),
            (("somenet", "mylib"), "No known packages have these modules. If they are files of yours, upload them"),
        ],
    )
    def test_a_guess_is_not_called_a_package(
        self, alice: User, project: Project, base: Environment, imports: tuple[str, ...], legend: str
    ) -> None:
        Environment.objects.exclude(pk=base.pk).update(retired=True)
        assert legend in self.notice(alice, upload(project, imports))

    @pytest.mark.parametrize(
        ("lines", "button"), [(["rich"], "Install this package"), (["rich", "pandas>=2"], "Install these packages")]
    )
    def test_the_button_of_a_list_counts_its_packages(
        self, alice: User, project: Project, base: Environment, lines: list[str], button: str
    ) -> None:
        assert f"{button} </button>" in self.notice(alice, upload(project, ("rich",), {**LIST, "lines": lines}))

    @pytest.mark.parametrize("lines", [["numpy"], ["rich", "numpy"]])
    def test_the_python_of_a_list_is_not_passed_over(
        self, alice: User, project: Project, base: Environment, lines: list[str]
    ) -> None:
        code = upload(
            project, ("rich",), {**LIST, "path": "environment.yml", "kind": "conda", "python": "3.10", "lines": lines}
        )
        assert "It asks for Python 3.10, which only" in self.notice(alice, code)
        full = Environment.objects.create(
            key="full", title="Full", project=project, recipe="r", python="3.10", lines=["numpy"]
        )
        client = Client()
        client.force_login(alice)
        page = client.get(f"/jobs/new?code={code.pk}&environment={full.key}").content.decode()
        assert "environment.yml" in page and "asks for Python" not in page

    def test_lines_that_an_installed_list_lacks_are_counted(
        self, alice: User, project: Project, base: Environment
    ) -> None:
        refused = [{"line": 2, "text": "git+https://git.example.org/somenet", "why": "No.", "path": "requirements.txt"}]
        code = upload(project, ("somenet",), {**LIST, "lines": ["numpy"], "refused": refused})
        notice = self.notice(alice, code)
        shown, _, folded = notice.partition("<details>")
        assert "It has the package that <code>requirements.txt</code> asks for" in shown
        assert "1 line of it cannot be installed." in shown and folded
        assert "<code>somenet</code> seems to be what" in notice and "may be a file" not in notice


class TestForm:
    def post(self, user: User, code: CodeVersion, **sent: Any) -> Any:
        client = Client()
        client.force_login(user)
        form = {
            "launcher": "command", "command": "python train.py --lr 1", "min_gpus": "3", "max_gpus": "3", "key": "k",
            "time_amount": "7", "time_unit": "60", "env_vars": "A=b", "environment": "own-base",
        }  # fmt: skip
        return client.post(f"/jobs/new?code={code.pk}", form | sent)

    def test_one_click_keeps_what_was_typed_and_submits_nothing(
        self, alice: User, project: Project, base: Environment
    ) -> None:
        code = upload(project, ("pandas",), LIST)
        response = self.post(alice, code, install="requirements.txt")
        made = Environment.objects.get(project=project)
        form = response.context["form"]
        assert response.status_code == 200 and not Job.objects.exists()
        assert form["environment"].value() == made.key
        assert {name: form[name].value() for name in ("command", "min_gpus", "time_amount", "env_vars")} == {
            "command": "python train.py --lr 1",
            "min_gpus": "3",
            "time_amount": "7",
            "env_vars": "A=b",
        }
        page = " ".join(response.content.decode().split())
        assert made.title in page and "It is being built" in page
        assert "It will have all the packages that <code>requirements.txt</code> asks for, once" in page

    def test_a_refusal_is_shown_on_the_form(self, alice: User, project: Project, base: Environment) -> None:
        response = self.post(alice, upload(project, ("somenet",)), install="imports")
        assert response.status_code == 400 and "Tick at least one package" in response.content.decode()

    @pytest.mark.parametrize("sent", [{"install": "/no/such/list"}, {"min_gpus": "many"}, {"translate": "yes"}])
    def test_ticks_are_kept_while_the_form_is_shown_again(
        self, alice: User, project: Project, base: Environment, sent: dict[str, str]
    ) -> None:
        response = self.post(alice, upload(project, ("somenet", "mylib")), package=["mylib"], **sent)
        page = " ".join(response.content.decode().split())
        assert 'value="mylib" checked>' in page and 'value="somenet">' in page

    def test_lists_are_hostile(self, alice: User, project: Project, base: Environment) -> None:
        evil = "<script>alert(1)</script>"
        refused = [{"line": 1, "text": evil, "why": evil, "path": evil}]
        code = upload(project, ("pandas",), {**LIST, "path": evil, "refused": refused, "notes": [{"text": evil}]})
        client = Client()
        client.force_login(alice)
        page = client.get(f"/jobs/new?code={code.pk}").content.decode()
        assert evil not in page and "&lt;script&gt;" in page

    def test_an_environment_of_another_project_cannot_be_chosen(
        self, alice: User, project: Project, base: Environment
    ) -> None:
        other = make_project(make_user("carol"))
        secret = Environment.objects.create(key="secret", title="Secret tools", project=other, recipe="r", base=base)
        code = upload(project, ("pandas",), LIST)
        response = self.post(alice, code, environment=secret.key)
        assert response.status_code == 400 and not Job.objects.exists()
        assert "Secret tools" not in response.content.decode()
        assert self.post(alice, code, environment=secret.key, install="requirements.txt").status_code == 404
