"""The environment of the peers, benchmarks/.peers, separate from that of yamlsched."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.contenders import Contender

HERE = Path(__file__).parent


def install(folder: Path, contenders: Iterable[Contender]) -> None:
    """Install what ``contenders`` need, once. Print what cannot be installed; it is not measured."""
    needs = {contender.needs for contender in contenders}
    if "pip" in needs:
        _once(folder / "venv/ready", HERE / "requirements.txt", lambda: _pip(folder / "venv"))
    if "npm" in needs:
        _once(folder / "node_modules/.ready", HERE / "package.json", lambda: _npm(folder))


def _once(mark: Path, source: Path, make) -> None:
    wanted = source.read_text()
    if mark.exists() and mark.read_text() == wanted:
        return
    try:
        print(f"installing the peers of {source.name} ...", file=sys.stderr)
        make()
    except (OSError, subprocess.CalledProcessError) as error:
        print(
            f"the peers of {source.name} cannot be installed, and are not measured: {error}",
            file=sys.stderr,
        )
        return
    mark.write_text(wanted)


def _pip(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    requirements = HERE / "requirements.txt"
    subprocess.run(
        [folder / "bin/python", "-m", "pip", "install", "-q", "-r", requirements], check=True
    )


def _npm(folder: Path) -> None:
    if not (shutil.which("node") and shutil.which("npm")):
        raise OSError("node is not installed")
    folder.mkdir(exist_ok=True)
    shutil.copy(HERE / "package.json", folder)
    subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True
    )
