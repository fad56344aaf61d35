"""``python -m tools.reference``: writes all pages."""

from tools.reference import FOLDER, PAGES

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page(), encoding="utf-8")
