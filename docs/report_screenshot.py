"""Takes the pictures of a report page that docs/use/reports.md shows, in light and dark.

    python docs/report_screenshot.py

Compiles the text detector of samples/model_zoo.py for x86-64-v3 and needs Chromium. Fonts are the
machine's, so that no test compares the pictures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "samples")]
SHADES = {"light": (), "dark": ("--force-dark-mode",)}


def main() -> int:
    """Writes docs/figures/report-light.png and report-dark.png."""
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1796083200")  # the page's own date
    import model_zoo

    import aot

    with tempfile.TemporaryDirectory(prefix="aotc-") as folder:
        page = Path(folder) / "report.html"
        module = aot.compile(
            str(model_zoo.fetch("ppocr_det")),
            targets=["x86-64-v3"],
            input_shapes={"x": "1x3x320x320"},
            details=True,
        )
        module.save_report(page, "det.aotm")
        for shade, options in SHADES.items():
            out = ROOT / "docs" / "figures" / f"report-{shade}.png"
            command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", *options]
            command += [f"--screenshot={out}", "--window-size=1000,1500", "--hide-scrollbars"]
            command += [f"--user-data-dir={folder}/profile-{shade}", page.as_uri()]
            subprocess.run(command, check=True, capture_output=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
