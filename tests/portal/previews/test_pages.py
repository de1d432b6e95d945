"""Pages, images, recordings and frames of hostile files, as the browser gets them."""

import base64
import io
import json
from dataclasses import replace
from html import unescape
from typing import Any

import pytest
from django.test import Client
from PIL import Image

from portal.accounts.models import User
from portal.jobs import lifecycle, outputs
from portal.jobs.models import Attempt, Job
from portal.previews import preview
from portal.projects import services
from portal.projects.models import Membership
from tests.portal import jobs_world as world
from tests.portal.files import picture, tiny_png
from tests.portal.pages import compact
from tests.portal.previews.test_reading import bomb

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script><form action=//evil.example><img src=x onerror=alert(1)>"
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(range(84))


class Lab:
    def __init__(self) -> None:
        self.alice, self.charlie = (world.make_user(name) for name in ("alice", "charlie"))
        self.viewer = world.make_user("victor")
        self.project = world.make_project(self.alice)
        Membership.objects.create(project=self.project, user=self.viewer, role=Membership.Role.VIEWER)
        self.job: Job = world.make_job(self.project)
        self.attempt: Attempt = world.place(self.job, list(world.make_node(gpus=1).gpus.all()))
        for part in self.attempt.containers.all():
            lifecycle.advance(part, "RUNNING")

    def store(self, path: str, data: bytes) -> None:
        outputs.store(self.attempt, path, [data] if data else [])

    def get(self, part: str, path: str, user: User | None = None, **headers: Any) -> Any:
        client = Client()
        client.force_login(user or self.viewer)
        path, _, query = path.partition("?show=") if "?show=" in path else path.partition("?size=")
        asked = {"show" if query not in ("small", "huge") else "size": query} if query else {}
        return client.get(f"/jobs/{self.job.pk}/{part}/{path}", asked, headers=headers)


@pytest.fixture
def lab() -> Lab:
    return Lab()


def body(response: Any) -> bytes:
    return b"".join(response.streaming_content) if response.streaming else response.content


HOSTILE: dict[str, tuple[bytes, str]] = {
    "bomb.png": (bomb(20_000), "20,000 × 20,000 pixels, too many"),
    "cut.jpg": (picture("JPEG", 300, 200)[:700], "damaged"),
    "evil.svg": (f"<svg xmlns='http://www.w3.org/2000/svg'>{EVIL}</svg>".encode(), "alert"),
    "evil.html": (EVIL.encode(), "alert"),
    "evil.md": (f"# Title\n\n{EVIL} [x](javascript:alert(1)) ![p](http://evil.example/x.png)\n".encode(), "Title"),
    "evil.csv": (f"name,value\n=cmd|' /C calc'!A0,{EVIL}\n".encode(), "=cmd|&#x27; /C calc&#x27;!A0"),
    "nul.csv": (b"a,b\n" + b"one,two\n" * 9 + b"x\0,2\n", "\u2400"),
    "long.csv": (b"a,b\n" + b"x" * 10_000_000 + b",2\n", "Only the first"),
    "evil.json": (json.dumps({"a": EVIL}).encode(), "alert"),
    "deep.json": (b"[" * 300_000, "very long lines"),
    "evil.ipynb": (
        json.dumps(
            {
                "cells": [
                    {"cell_type": "markdown", "source": EVIL, "attachments": {"x.svg": {"image/svg+xml": EVIL}}},
                    {"cell_type": "code", "source": EVIL, "outputs": [{"output_type": "display_data", "data": {"text/html": EVIL}}]},
                ]
            }
        ).encode(),
        "HTML output not shown",
    ),
    "many.ipynb": (json.dumps({"cells": [{"cell_type": "code", "source": "x = 1"}] * 10_000}).encode(), "first 200 of 10,000 cells"),
    "bidi.py": ("access = 'user\u202e \u2066# admin\u2069 \u2066'\n".encode(), "change the order"),
    "latin.log": (b"na\xefve " * 100, "naïve"),
    "weights.bin": (bytes(range(256)) * 3, "30 31 32 33"),
    "empty.txt": (b"", "There is nothing in this file"),
}  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_a_hostile_file_is_shown_without_anything_of_it_running(lab: Lab, path: str) -> None:
    content, shown = HOSTILE[path]
    lab.store(path, content)
    response = lab.get("view", path)
    page = response.content.decode()
    assert response.status_code == 200 and shown in page
    assert "'unsafe-inline'" not in response["Content-Security-Policy"]
    assert "<script>alert" not in page and "onerror=alert(1)>" not in page.replace("onerror=alert(1)&gt;", "")
    assert 'href="javascript' not in page and "evil.example/x.png" not in page
    assert len(page) < 3_000_000


NAMES = [
    "quote\"'<img src=x onerror=alert(1)>.txt",
    "photo\u202egpj.txt",
    "a b+c%2F&d#e?f=g.txt",
    "füße/图片.txt",
    "n" * 240 + "/" + "m" * 240 + ".txt",
    "-rf ~.txt",
    "{{ 7|add:7 }}{% url %}.txt",
]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_work_everywhere(lab: Lab, name: str) -> None:
    lab.store(name, b"content of it")
    lab.store("zzz.png", tiny_png())
    client = Client()
    client.force_login(lab.alice)
    page = client.get(f"/jobs/{lab.job.pk}/files/")
    addresses = [
        unescape(address) for address in page.content.decode().split('"') if f"/jobs/{lab.job.pk}/view/" in address
    ]
    assert len(addresses) == 2
    shown = [client.get(address).content.decode() for address in addresses]
    assert any("content of it" in each for each in shown)
    assert all("<img src=x" not in each and "\u202e" not in each for each in [*shown, page.content.decode()])


def test_names_with_line_ends_are_refused() -> None:
    with pytest.raises(outputs.BadPathError):
        outputs.clean_path("a\nb.txt")


def test_images_are_encoded_again_and_kept_by_the_browser(lab: Lab) -> None:
    lab.store("plot.png", picture("PNG", 3000, 30) + b"<script>alert(1)</script>")
    large, small = lab.get("image", "plot.png"), lab.get("image", "plot.png?size=small")
    for response, width in ((large, 2000), (small, 96)):
        assert response["Content-Type"] == "image/png" and response["X-Content-Type-Options"] == "nosniff"
        assert response["Content-Security-Policy"] == "sandbox; default-src 'none'"
        assert "script" not in body(response).decode("latin-1")
        with Image.open(io.BytesIO(body(response))) as image:
            assert image.width == width
    again = lab.get("image", "plot.png", **{"If-None-Match": large["ETag"]})
    assert again.status_code == 304 and "sandbox" in again["Content-Security-Policy"]
    assert lab.get("image", "plot.png?size=small", **{"If-None-Match": large["ETag"]}).status_code == 200
    assert lab.get("image", "plot.png?size=huge").status_code == 404
    lab.store("plot.png", picture("PNG", 10, 30))
    assert lab.get("image", "plot.png", **{"If-None-Match": large["ETag"]}).status_code == 200


@pytest.mark.parametrize("path", ["bomb.png", "cut.jpg", "evil.svg", "evil.html", "weights.bin", "evil.ipynb"])
def test_what_is_no_image_is_never_sent_as_one(lab: Lab, path: str) -> None:
    lab.store(path, HOSTILE[path][0])
    assert lab.get("image", path).status_code == 404


def test_images_of_notebooks_are_sent_by_number(lab: Lab) -> None:
    image = {"output_type": "display_data", "data": {"image/png": base64.b64encode(picture("PNG", 7, 1)).decode()}}
    broken = {"output_type": "display_data", "data": {"image/jpeg": "%%%%"}}
    lab.store(
        "a.ipynb", json.dumps({"cells": [{"cell_type": "code", "source": "", "outputs": [image, broken]}]}).encode()
    )
    page = lab.get("view", "a.ipynb").content.decode()
    assert f"/jobs/{lab.job.pk}/image/a.ipynb?number=0" in page
    client = Client()
    client.force_login(lab.viewer)
    address = f"/jobs/{lab.job.pk}/image/a.ipynb?number="
    with Image.open(io.BytesIO(client.get(address + "0").content)) as shown:
        assert shown.size == (7, 1)
    for number in ("1", "2", "9999", "-1", "x", "99999", "\u0663"):
        assert client.get(address + number).status_code == 404, number


@pytest.mark.parametrize(
    ("asked", "status", "part"),
    [
        ("", 200, slice(0, None)),
        ("bytes=0-3", 206, slice(0, 4)),
        ("bytes=4-", 206, slice(4, None)),
        ("bytes=-5", 206, slice(-5, None)),
        ("bytes=0-99999", 200, slice(0, None)),
        ("bytes=90-99999", 206, slice(90, None)),
        ("bytes=0-1,5-6", 200, slice(0, None)),
        ("lines=1-2", 200, slice(0, None)),
        ("bytes=-", 200, slice(0, None)),
    ],
)
def test_recordings_are_sent_in_parts(lab: Lab, asked: str, status: int, part: slice) -> None:
    lab.store("a.wav", WAV)
    response = lab.get("media", "a.wav", Range=asked)
    assert response.status_code == status
    assert body(response) == WAV[part] and int(response["Content-Length"]) == len(WAV[part])
    assert response["Content-Type"] == "audio/wav" and response["X-Content-Type-Options"] == "nosniff"
    assert (
        "Content-Disposition" not in response and response["Content-Security-Policy"] == "sandbox; default-src 'none'"
    )


@pytest.mark.parametrize("asked", ["bytes=100-", "bytes=9-3", "bytes=-0"])
def test_parts_that_there_are_not_are_refused(lab: Lab, asked: str) -> None:
    lab.store("a.wav", WAV)
    response = lab.get("media", "a.wav", Range=asked)
    assert response.status_code == 416 and response["Content-Range"] == f"bytes */{len(WAV)}"


def test_html_is_framed_without_scripts_forms_and_origin(lab: Lab) -> None:
    lab.store("evil.html", EVIL.encode())
    page = compact(lab.get("view", "evil.html?show=rendered").content.decode())
    assert "sandbox loading" in page and "allow-scripts" not in page and "allow-same-origin" not in page
    assert f'src="/jobs/{lab.job.pk}/framed/evil.html"' in page
    response = lab.get("framed", "evil.html")
    assert body(response).decode() == EVIL
    assert response["Content-Security-Policy"] == (
        "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'self'"
    )
    assert response["X-Frame-Options"] == "SAMEORIGIN" and response["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["evil.svg", "evil.md", "weights.bin", "page.html"])
def test_nothing_else_is_framed(lab: Lab, path: str) -> None:
    lab.store(path, bytes(100) if path == "page.html" else HOSTILE[path][0])
    assert lab.get("framed", path).status_code == 404


@pytest.mark.parametrize(
    ("path", "show", "status"),
    [
        ("evil.md", "source", 200),
        ("evil.md", "rendered", 404),
        ("evil.csv", "source", 200),
        ("evil.csv", "x", 404),
        ("bidi.py", "source", 404),
    ],
)
def test_only_views_of_the_kind_exist(lab: Lab, path: str, show: str, status: int) -> None:
    lab.store(path, HOSTILE[path][0])
    response = lab.get("view", f"{path}?show={show}")
    assert response.status_code == status
    if status == 200:
        assert response.context["preview"]["kind"] == "text"


def test_halves_of_surrogate_pairs_in_json_are_shown_as_question_marks(lab: Lab) -> None:
    half = "a\ud800z"
    output = {"output_type": "stream", "text": f"{half} printed"}
    cells = [
        {"cell_type": "markdown", "source": f"{half} in prose"},
        {"cell_type": "code", "source": f"'{half} in code'", "outputs": [output]},
    ]
    lab.store("half.ipynb", json.dumps({"cells": cells}).encode())
    lab.store("half.jsonl", json.dumps({f"{half} name": f"{half} value", "b": {"c": half}}).encode())
    for path, texts in {"half.ipynb": (" in prose", " in code", " printed"), "half.jsonl": (" name", " value")}.items():
        response = lab.get("view", path)
        assert response.status_code == 200
        for text in texts:
            assert f"a?z{text}" in response.content.decode(), (path, text)


def test_a_file_that_takes_too_long_is_shown_as_plain_text(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preview, "LIMITS", replace(preview.LIMITS, seconds=0.001))
    lab.store("a.py", f"x = '{EVIL}'\n".encode())
    page = lab.get("view", "a.py").content.decode()
    assert "&lt;script&gt;" in page and "<script>alert" not in page and "than the limits allow" in page
    lab.store("a.png", tiny_png())
    assert "limits of time" in lab.get("view", "a.png").content.decode()
    assert lab.get("image", "a.png").status_code == 404


def test_the_page_of_a_file_leads_to_its_neighbours(lab: Lab) -> None:
    for name in ("a.txt", "b.txt", "c.txt"):
        lab.store(name, b"x")
    first, middle, last = (lab.get("view", name).context for name in ("a.txt", "b.txt", "c.txt"))
    assert (first["previous"], first["next"]) == (None, "b.txt")
    assert (middle["previous"], middle["next"]) == ("a.txt", "c.txt")
    assert (last["previous"], last["next"]) == ("b.txt", None)


def test_parts_of_a_file_are_for_those_who_may_download_it(lab: Lab) -> None:
    files = {"plot.png": tiny_png(), "a.wav": WAV, "page.html": b"<p>x"}
    for name, content in files.items():
        lab.store(name, content)
    for part, name in (("view", "plot.png"), ("image", "plot.png"), ("media", "a.wav"), ("framed", "page.html")):
        assert lab.get(part, name, lab.charlie).status_code == 404
        assert Client().get(f"/jobs/{lab.job.pk}/{part}/{name}").status_code == 302
        assert lab.get(part, name, lab.viewer).status_code == 200
    Membership.objects.filter(user=lab.viewer).delete()
    etag = lab.get("image", "plot.png", lab.alice)["ETag"]
    assert lab.get("image", "plot.png", lab.viewer, **{"If-None-Match": etag}).status_code == 404


def test_content_that_is_gone_is_not_found(lab: Lab) -> None:
    for name, content in (("plot.png", tiny_png()), ("a.wav", WAV), ("page.html", b"<p>x")):
        lab.store(name, content)
    for file in outputs.folder_of(lab.job).iterdir():
        file.unlink()
    for part, name in (("view", "plot.png"), ("image", "plot.png"), ("media", "a.wav"), ("framed", "page.html")):
        assert lab.get(part, name).status_code == 404


def test_the_list_of_files_has_small_images_and_names_as_they_are(lab: Lab) -> None:
    lab.store("plot.png", tiny_png())
    lab.store("photo\u202egnp.exe", b"MZ")
    client = Client()
    client.force_login(lab.viewer)
    page = client.get(f"/jobs/{lab.job.pk}/files/").content.decode()
    assert f'src="/jobs/{lab.job.pk}/image/plot.png?size=small"' in page and 'loading="lazy"' in page
    assert "photo\\u202egnp.exe" in page and "\u202e" not in page


def test_files_of_code_are_shown_in_the_same_way(lab: Lab) -> None:
    files = {"a/plot.png": picture("PNG", 7, 3), "a/page.html": EVIL.encode(), "a/b.wav": WAV, "train.py": b"x = 1\n"}
    version = services.store_code(
        lab.alice, lab.project, [(f"p/{name}", io.BytesIO(data)) for name, data in files.items()], ""
    )
    client = Client()
    client.force_login(lab.viewer)
    at = f"/projects/{lab.project.pk}/code/{version.number}/"
    page = client.get(f"{at}?path=a/plot.png").content.decode()
    assert f'src="{at}image?path=a%2Fplot.png"' in page and "7 × 3 pixels" in page
    with Image.open(io.BytesIO(client.get(f"{at}image?path=a/plot.png").content)) as image:
        assert image.size == (7, 3)
    assert body(client.get(f"{at}framed?path=a/page.html")) == EVIL.encode()
    assert body(client.get(f"{at}media?path=a/b.wav", headers={"Range": "bytes=8-11"})) == b"WAVE"
    assert "sandbox loading" in compact(client.get(f"{at}?path=a/page.html&show=rendered").content.decode())
    for path in (
        "?path=a/page.html&show=x",
        "image?path=nothing.png",
        "image",
        "framed?path=train.py",
        "media?path=../b.wav",
    ):
        assert client.get(at + path).status_code == 404, path
