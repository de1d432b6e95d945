"""Names of zips that state no encoding are read as what they are, in the code pages that labs meet."""

import pytest

from portal.projects.unpacking.codepages import decode_names


@pytest.mark.parametrize(
    ("encoding", "names", "title"),
    [
        ("utf-8", ["训练.py", "été.py"], ""),
        ("cp437", ["été.py", "Müller.txt"], ""),
        ("cp437", ["schön.py", "Größenänderung.py", "España/niño.csv"], ""),
        ("gbk", ["训练.py", "数据/模型.pt"], "simplified Chinese (GBK)"),
        ("shift_jis", ["学習データ.py", "ok.py"], "Japanese (Shift-JIS)"),
        ("shift_jis", ["学習.py"], "Japanese (Shift-JIS)"),
        ("euc_kr", ["훈련데이터.py", "모델.pt"], "Korean (EUC-KR)"),
        ("big5", ["訓練資料.py"], "traditional Chinese (Big5)"),
        ("cp1251", ["модель.py", "Данные/обучение.csv"], "Cyrillic (Windows-1251)"),
        ("cp866", ["модель.py"], "Cyrillic (DOS 866)"),
        ("cp437", ["box░.py"], "the zip format (CP437)"),
    ],
)
def test_names_are_read_in_the_encoding_they_were_written_in(encoding: str, names: list[str], title: str) -> None:
    assert decode_names([name.encode(encoding) for name in names]) == (names, title)


def test_any_bytes_become_names() -> None:
    for first in range(256):
        names, _ = decode_names([bytes([first, second]) for second in range(0, 256, 7)])
        assert len(names) == 37 and all(isinstance(name, str) for name in names)
