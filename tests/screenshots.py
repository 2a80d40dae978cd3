"""``make screenshots``: the pictures of README.md and docs/web.md, from the demonstration.

They show a server of its own over a database of its own. Each has a fixed size, and a palette, which keeps it small.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for tests/support, as pytest does

from PIL import Image

from docs import demo_data
from support.chromium import launched, new_context
from support.database import temporary_database
from support.web_server import serving
from yamlsched import log
from yamlsched.extras import embedded

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "images"
WIDTH = 1280
COLOURS = 256
MAX_BYTES = 150_000


class Picture(NamedTuple):
    """A file, and the page that it shows."""

    name: str
    path: str
    height: int
    scheme: str = "light"


PICTURES = (
    Picture("jobs.png", "/", 1120),
    Picture("jobs-dark.png", "/", 1120, "dark"),
    Picture("job.png", "/jobs/refresh_cache?span=24h", 1280),
    Picture("calendar.png", "/calendar", 760),
    Picture("dead.png", "/dead?span=all", 600),
    Picture("files.png", "/files", 960),
    Picture("retry.png", "/actions/retry?run={dead}", 440),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.screenshots", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="file names (default: all)")
    names = parser.parse_args().names or [picture.name for picture in PICTURES]
    log.configure(verbosity=-1)
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        os.chdir(folder)
        file = folder / "schedules.yaml"
        stack.callback(embedded.discard, file)
        dsn = stack.enter_context(
            temporary_database(stack.enter_context(embedded.running(file)), "template0")
        )
        demo_data.fill(dsn)
        words = (
            "--namespace",
            demo_data.NAMESPACE,
            "--listen",
            "127.0.0.1:0",
            "--actions-dsn",
            dsn,
        )
        users = {"YAMLSCHED_WEB_USERS": "maria:secret"}
        _, address = stack.enter_context(serving(dsn, *words, "--auth", "basic", **users))
        browser = stack.enter_context(launched())
        for picture in PICTURES:
            if picture.name in names:
                size = write(FOLDER / picture.name, take(browser, address.rstrip("/"), picture))
                print(f"{size:>8,}  docs/images/{picture.name}")


def take(browser: Any, address: str, picture: Picture) -> bytes:
    """Return a PNG of the page."""
    context = new_context(
        browser,
        viewport={"width": WIDTH, "height": picture.height},
        color_scheme=picture.scheme,
        http_credentials={"username": "maria", "password": "secret"},
        timezone_id="Europe/Berlin",
    )
    with context:
        tab = context.new_page()
        path = picture.path
        if "{dead}" in path:
            tab.goto(f"{address}/runs?status=dead")
            link = tab.locator("main a[href^='/runs/']").first.get_attribute("href")
            path = path.format(dead=link.rpartition("/")[2])
        tab.goto(address + path)
        return bytes(tab.screenshot())


def write(path: Path, png: bytes) -> int:
    """Write the picture with few colours; return its size."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    small = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    small.save(path, optimize=True)
    size = path.stat().st_size
    assert size <= MAX_BYTES, f"{path.name} has {size:,} bytes; crop it"
    return size


if __name__ == "__main__":
    main()
