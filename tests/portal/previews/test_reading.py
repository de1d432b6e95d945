"""What the program makes of good and hostile files. It runs in this process here, and in the sandbox where limits matter."""

import base64
import io
import json
import struct
import zlib
from typing import Any

import pytest
from PIL import Image

from portal.previews import images, notebooks, tables, texts
from portal.previews.decoding import Text
from portal.previews.program import answer
from tests.portal.files import picture, without_colours


def read(path: str, data: bytes, kind: str = "text", size: int | None = None, **more: Any) -> dict[str, Any]:
    about = {"kind": kind, "path": path, "size": len(data) if size is None else size, "max_text_bytes": 512 * 1024}
    return answer(about | more, data)


def bomb(side: int) -> bytes:
    """Return a PNG of a few KiB that has ``side`` by ``side`` pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(side // 8 + 1)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


class TestImages:
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
    def test_each_format_becomes_pixels_of_our_own(self, kind: str) -> None:
        data, facts = images.encode_again(picture(kind, 30, 10), 2000)
        assert (facts["format"], facts["width"], facts["height"]) == (kind, 30, 10)
        with Image.open(io.BytesIO(data)) as image:
            assert image.format == ("JPEG" if kind == "JPEG" else "PNG") and image.size == (30, 10)

    def test_large_ones_become_smaller(self) -> None:
        data, facts = images.encode_again(picture("PNG", 3000, 300), 96)
        assert facts["is_smaller"] and facts["width"] == 3000
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == (96, 10)

    def test_a_bomb_is_recognised_before_it_is_decoded(self) -> None:
        data = bomb(30_000)
        assert len(data) < 300_000
        with pytest.raises(images.ImageError, match="30,000 × 30,000 pixels"):
            images.encode_again(data, 2000)

    @pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
    def test_one_that_is_cut_off_is_damaged(self, kind: str, share: float) -> None:
        noise = Image.effect_noise((64, 64), 90).convert("RGB")
        out = io.BytesIO()
        noise.save(out, kind)
        with pytest.raises(images.ImageError, match="damaged"):
            images.encode_again(out.getvalue()[: int(len(out.getvalue()) * share)], 2000)

    @pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16", "CMYK"])
    def test_every_mode_is_shown(self, mode: str) -> None:
        out = io.BytesIO()
        Image.new(mode, (4, 4)).save(out, "JPEG" if mode == "CMYK" else "PNG")
        assert images.encode_again(out.getvalue(), 2000)[1]["width"] == 4

    def test_transparency_stays(self) -> None:
        out = io.BytesIO()
        Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(out, "PNG")
        with Image.open(io.BytesIO(images.encode_again(out.getvalue(), 2000)[0])) as image:
            assert image.getpixel((0, 0)) == (255, 0, 0, 0)

    def test_metadata_and_anything_behind_the_image_are_dropped(self) -> None:
        exif = Image.Exif()
        exif[0x010E] = "secret place <script>"
        out = io.BytesIO()
        Image.new("RGB", (8, 4)).save(out, "JPEG", exif=exif, comment=b"secret comment", icc_profile=b"secret profile")
        data, _ = images.encode_again(out.getvalue() + b"<script>secret</script>", 2000)
        assert b"secret" not in data and b"script" not in data
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_text("Comment", "secret <script>")
        out = io.BytesIO()
        Image.new("RGB", (8, 4)).save(out, "PNG", pnginfo=info, icc_profile=b"secret profile")
        assert b"secret" not in images.encode_again(out.getvalue(), 2000)[0]

    def test_a_turned_photograph_stands_upright(self) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        out = io.BytesIO()
        Image.new("RGB", (8, 4)).save(out, "JPEG", exif=exif)
        data, facts = images.encode_again(out.getvalue(), 2000)
        with Image.open(io.BytesIO(data)) as image:
            assert image.size == (4, 8) == (facts["width"], facts["height"])

    def test_the_first_frame_of_an_animation_is_shown(self) -> None:
        frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "green")]
        out = io.BytesIO()
        frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
        data, facts = images.encode_again(out.getvalue(), 2000)
        assert facts["is_animated"]
        with Image.open(io.BytesIO(data)) as image:
            assert image.convert("RGB").getpixel((0, 0)) == (255, 0, 0)

    @pytest.mark.parametrize(
        "data", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"II*\0" + bytes(60), b"icns" + bytes(60)]
    )
    def test_other_formats_that_pillow_knows_are_not_tried(self, data: bytes) -> None:
        with pytest.raises(images.ImageError):
            images.encode_again(data, 2000)


class TestTables:
    def show(self, data: str, path: str = "a.csv", is_whole: bool = True) -> dict[str, Any]:
        found = tables.show_table(Text(data), path, is_whole=is_whole)
        assert found is not None
        return found

    def test_cells_stay_what_they_are(self) -> None:
        found = self.show('name,value\n=cmd|\' /C calc\'!A0,"a ""b"",\nc"\n<script>,1\n')
        assert found["header"] == ["name", "value"]
        assert found["rows"] == [["=cmd|' /C calc'!A0", 'a "b",\nc'], ["<script>", "1"]]
        assert (found["total"], found["columns"]) == (2, 2)

    def test_ragged_rows_stay(self) -> None:
        found = self.show("a,b\n1\n1,2,3\n\n")
        assert found["rows"] == [["1"], ["1", "2", "3"]] and found["header"] == ["a", "b", ""] and found["total"] == 2

    @pytest.mark.parametrize(
        ("text", "path"), [("a;b\n1,5;2\n", "a.csv"), ("a\tb\n1,5\t2\n", "a.tsv"), ("a|b\n1,5|2\n", "a.csv")]
    )
    def test_other_separators_are_recognised(self, text: str, path: str) -> None:
        assert self.show(text, path)["rows"] == [["1,5", "2"]]

    def test_only_the_first_rows_and_columns_are_shown(self) -> None:
        found = self.show(",".join(f"c{n}" for n in range(150)) + "\n" + "1,2\n" * 5000)
        assert len(found["rows"]) == 200 and found["total"] == 5000
        assert len(found["header"]) == 100 and found["hidden_columns"] == 50

    def test_of_a_file_that_is_cut_the_total_is_not_stated(self) -> None:
        found = self.show("a,b\n1,2\n3,", is_whole=False)
        assert found["total"] is None and found["rows"] == [["1", "2"]]

    def test_a_line_of_ten_megabytes_is_cut(self) -> None:
        found = self.show("a,b\n" + "x" * 10_000_000 + ",2\n")
        assert len(found["rows"][0][0]) < 400 and found["rows"][0][1] == "2"

    def test_nul_bytes_are_made_visible(self) -> None:
        found = read("a.csv", b"a,b\n" + b"one,two,three\n" * 5 + b"x\0y,2\n", "table")
        assert found["kind"] == "table" and found["rows"][-1] == ["x\u2400y", "2"]

    def test_numbers_are_recognised_by_column(self) -> None:
        assert self.show("a,b,c\n1,x,\n2.5e3,2,\n")["numeric"] == [True, False, False]

    def test_a_table_of_numbers_has_numbered_columns(self) -> None:
        found = self.show("1,2\n3,4\n")
        assert found["header"] == ["1", "2"] and found["rows"] == [["1", "2"], ["3", "4"]]

    def test_json_lines_have_a_column_for_each_key(self) -> None:
        text = '{"step":1,"loss":0.5}\n{"step":2,"tags":["<b>"]}\nnonsense\n7\n' + "[" * 10_000 + "\n"
        found = self.show(text, "log.jsonl")
        assert found["header"] == ["step", "loss", "tags", "(not JSON)", "value"]
        assert found["rows"][:4] == [
            ["1", "0.5", "", "", ""],
            ["2", "", '["<b>"]', "", ""],
            ["", "", "", "nonsense", ""],
            ["", "", "", "", "7"],
        ]
        assert found["total"] == 5

    @pytest.mark.parametrize("text", ["", "\n\n", '"', '"a\n' * 3, "a,b", "\r\r\n"])
    def test_odd_ones_are_shown_without_fail(self, text: str) -> None:
        self.show(text)


class TestTexts:
    def test_lines_are_cut_and_counted(self) -> None:
        found = read("a.py", b"x = 1\n" * 20_000 + b"y" * 3000)
        assert len(found["lines"]) == 10_000 and found["is_cut"]
        found = read("a.py", b"y" * 3000 + b"\nz\n")
        assert len(found["lines"][0]) <= 2100 and found["long_lines"] == 1 and not found["is_cut"]

    def test_the_characters_that_reorder_text_are_noticed(self) -> None:
        assert read("a.py", "if x:\u202e pass".encode())["has_bidi"]
        assert not read("a.py", "# שלום עולם".encode())["has_bidi"]

    def test_a_log_is_shown_as_a_terminal_would(self) -> None:
        assert read("a.log", b"\x1b[31merror\x1b[0m\n1 %\r\x1b[K2 %\n")["lines"] == ["error", "2 %"]

    @pytest.mark.parametrize(
        ("text", "lines"),
        [
            (
                '{"a":[1,2],"b":{},"a":1.000}',
                ["{", '  "a": [', "    1,", "    2", "  ],", '  "b": {},', '  "a": 1.000', "}"],
            ),
            ("[]", ["[]"]),
            ('"x, [y]"', ['"x, [y]"']),
            ('["\\"]\\\\"]', ["[", '  "\\"]\\\\"', "]"]),
            ("not json", ["not json"]),
            ("[" * 20_000, ["[" * 2000]),
        ],
    )
    def test_json_is_indented_and_nothing_of_it_changed(self, text: str, lines: list[str]) -> None:
        found = read("a.json", text.encode(), "json")
        assert [without_colours(line) for line in found["lines"]] == lines

    def test_indented_json_is_the_same_value(self) -> None:
        value = {"a": [1, None, True, {"x": '},{["\\ \u2028'}], "": [[], {}], "é": -1.5e-7}
        indented = texts.indent_json(json.dumps(value))
        assert indented is not None and json.loads(indented) == value
        assert indented == json.dumps(value, indent=2)


def notebook(*cells: dict[str, Any], **more: Any) -> Text:
    return Text(json.dumps({"cells": list(cells), "nbformat": 4, **more}))


def code(source: Any, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "execution_count": 1, "source": source, "outputs": list(outputs)}


def data(**contents: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {name.replace("_", "/"): value for name, value in contents.items()}}


class TestNotebooks:
    def test_cells_and_outputs_are_shown(self) -> None:
        png = base64.b64encode(picture("PNG")).decode()
        found = notebooks.show_notebook(
            notebook(
                {"cell_type": "markdown", "source": ["# Title\n", "text"]},
                code(
                    ["import os\n", "1"],
                    {"output_type": "stream", "name": "stdout", "text": ["\x1b[31mred\x1b[0m\n"]},
                    data(image_png=png),
                    {"output_type": "error", "ename": "E", "evalue": "x", "traceback": ["\x1b[1mE\x1b[0m: x"]},
                ),
                {"cell_type": "raw", "source": "<b>"},
            )
        )
        title, cell, raw = found["cells"]
        assert "<h3>Title</h3>" in title["html"] and raw["text"] == "<b>"
        assert without_colours(cell["html"]) == "import os\n1"
        assert [output["kind"] for output in cell["outputs"]] == ["text", "image", "error"]
        assert cell["outputs"][0]["text"] == "red\n" and cell["outputs"][2]["text"] == "E: x"

    def test_nothing_of_it_is_markup_that_runs(self) -> None:
        evil = "<script>alert(1)</script>"
        cell = code(
            evil,
            data(text_html=evil),
            data(application_javascript=evil),
            {"output_type": "display_data", "data": {"image/svg+xml": evil}},
        )
        markdown = {
            "cell_type": "markdown",
            "source": f"{evil} ![x](attachment:x.svg)",
            "attachments": {"x.svg": {"image/svg+xml": evil}},
        }
        found = notebooks.show_notebook(notebook(cell, markdown, metadata={"kernelspec": {"language": evil}}))
        assert [output["kind"] for output in found["cells"][0]["outputs"]] == ["left-out"] * 3
        assert [output["what"] for output in found["cells"][0]["outputs"]] == ["HTML", "JavaScript", "SVG"]
        assert "<script" not in "".join(cell["html"] for cell in found["cells"])

    def test_ten_thousand_cells_are_cut(self) -> None:
        found = notebooks.show_notebook(notebook(*[code("x = 1\n" * 100)] * 10_000))
        assert len(found["cells"]) == 200 and found["total"] == 10_000

    def test_long_cells_and_outputs_share_a_budget(self) -> None:
        stream = {"output_type": "stream", "text": "y" * 50_000}
        found = notebooks.show_notebook(notebook(*[code("x" * 100_000, *[stream] * 100)] * 100))
        cell = found["cells"][0]
        assert cell["is_cut"] and cell["hidden_outputs"] == 70 and cell["outputs"][0]["is_cut"]
        assert len(json.dumps(found)) < 3_000_000

    def test_its_images_are_numbered_as_they_are_shown(self) -> None:
        pictures = [base64.b64encode(picture("PNG", side, 1)).decode() for side in (3, 5, 7)]
        text = notebook(
            code("1", data(image_png=pictures[0]), data(image_png=[pictures[1]])),
            code("2", data(image_jpeg=pictures[2])),
        )
        shown = [output["number"] for cell in notebooks.show_notebook(text)["cells"] for output in cell["outputs"]]
        assert shown == [0, 1, 2]
        for number, width in enumerate((3, 5, 7)):
            with Image.open(io.BytesIO(notebooks.notebook_image(text, number))) as image:
                assert image.width == width
        with pytest.raises(notebooks.NotebookError):
            notebooks.notebook_image(text, 3)

    def test_one_of_format_3_is_shown(self) -> None:
        cells = [
            {
                "cell_type": "code",
                "input": "print 1",
                "prompt_number": 2,
                "outputs": [{"output_type": "pyout", "text": ["1"], "html": "<b>"}],
            }
        ]
        found = notebooks.show_notebook(Text(json.dumps({"worksheets": [{"cells": cells}]})))
        assert found["cells"][0]["count"] == 2
        assert [output["kind"] for output in found["cells"][0]["outputs"]] == ["text", "left-out"]

    @pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"cells": 1}', "[" * 100_000, '{"cells": {}}', "null"])
    def test_what_is_none_is_shown_as_text(self, text: str) -> None:
        assert read("a.ipynb", text.encode(), "notebook")["kind"] == "text"

    @pytest.mark.parametrize(
        "cell",
        [1, None, {}, {"cell_type": "code"}, code(None), code([1, None]), code("x", {}), code("x", {"output_type": "stream", "text": 3}),
         code("x", {"output_type": "error", "traceback": "no list"}), code("x", {"output_type": "display_data", "data": [1]}),
         {"cell_type": "markdown", "source": {"a": 1}}, {"cell_type": ["code"], "source": "x"}, code("x", data(image_png=1))],
    )  # fmt: skip
    def test_odd_cells_are_shown_without_fail(self, cell: Any) -> None:
        assert notebooks.show_notebook(notebook(cell))["total"] in (0, 1)
