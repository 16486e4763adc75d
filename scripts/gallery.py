"""Run the commands of `docs/gallery.md` in a new folder, and take its pictures.

python scripts/gallery.py FOLDER

It takes Chromium and the extra `test`.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

PROJECT = Path(__file__).parents[1]
PICTURES = PROJECT / "docs" / "gallery"
PORT = "6016"
VIEW = {"width": 1100, "height": 720}

PLACES = {
    "report": ("report.html", "main"),
    "curves": ("report.html", "#t1-at-curves"),
    "attention": ("inside.html", "#attention"),
    "attributions": ("inside.html", "#attributions h3"),
    "probes": ("probes.html", "#probes figure"),
}
"""Picture -> the page that it is of, and what stands at its upper edge."""


def run_commands(folder: Path) -> None:
    """Run each command of the page but the last, which serves until it is ended."""
    text = (PROJECT / "docs" / "gallery.md").read_text(encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    for words in map(shlex.split, re.findall(r"^\$ transfer (.+)$", text, re.MULTILINE)):
        command = [sys.executable, "-m", "transfer_cli", *words]
        subprocess.run(command, cwd=folder, env=environment, check=True)


def take_picture(page: Page, name: str) -> None:
    """Write what a page shows, in 64 colours, which keeps it small."""
    file = PICTURES / f"{name}.png"
    page.screenshot(path=file)
    Image.open(file).convert("RGB").quantize(64, dither=Image.Dither.NONE).save(file, optimize=True)


def take_pictures(folder: Path, page: Page) -> None:
    """Take the pictures of pages, then that of TensorBoard."""
    for name, (file, place) in PLACES.items():
        page.goto(f"file://{folder / file}")
        page.locator(place).first.evaluate("element => element.scrollIntoView()")
        page.wait_for_timeout(500)
        take_picture(page, name)
    words = [sys.executable, "-m", "tensorboard.main", "--logdir", "runs/schemes", "--port", PORT]
    with subprocess.Popen(words, cwd=folder) as board:
        try:
            time.sleep(30)  # it has no sign of being there
            page.goto(f"http://localhost:{PORT}/#timeseries")
            page.get_by_label("Toggle settings side pane").click()  # it is open
            page.locator("metrics-tag-filter input").fill("^(validation|train)/loss")
            page.keyboard.press("Escape")  # its proposals
            page.wait_for_timeout(15_000)
            take_picture(page, "tensorboard")
        finally:
            board.terminate()


def main() -> None:
    """Make the pictures of the page."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True)
    PICTURES.mkdir(exist_ok=True)
    run_commands(folder)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"))
        take_pictures(folder, browser.new_page(viewport=VIEW, reduced_motion="reduce"))
        browser.close()


if __name__ == "__main__":
    main()
