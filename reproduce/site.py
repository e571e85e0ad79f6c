"""MkDocs hook: the records that pages link to (``../reproduce/records/…``) become part of the site."""

import re
from pathlib import Path

from mkdocs.structure.files import File

RECORDS = Path(__file__).parent / "records"
SHOWN = ("*.svg", "*.png", "*.json")


def on_files(files, config):
    for pattern in SHOWN:
        for path in sorted(RECORDS.glob(f"*/{pattern}")):
            files.append(File.generated(config, f"records/{path.relative_to(RECORDS)}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown, page, config, files):
    def link(match):
        record, name = match[1], match[2]
        found = name or next((n for n in ("record.json", "report.json") if (RECORDS / record / n).exists()), "")
        return f"](records/{record}/{found})"

    return re.sub(r"\]\(\.\./reproduce/records/([^/)]+)/?([^)]*)\)", link, markdown)
