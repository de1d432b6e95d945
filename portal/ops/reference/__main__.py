from portal.ops.reference import DOCS, pages

if __name__ == "__main__":
    for name, text in pages().items():
        path = DOCS / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
