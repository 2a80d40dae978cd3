"""Installed releases of yamlsched: this tree, and newer ones, each as a wheel in its own environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("yamlsched", "sql", "docs", "pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md")


@dataclass(frozen=True)
class Release:
    """An environment with one release of yamlsched, and the dependencies of this one."""

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "bin" / "yamlsched"

    def start(
        self, *words: object, cwd: Path, log: Path, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start ``yamlsched *words`` with its stderr in ``log``."""
        argv = [str(word) for word in (self.program, *words)]
        with log.open("ab") as stderr:
            return subprocess.Popen(
                argv,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                env={**os.environ, **environment},
            )

    def run(
        self, *words: object, cwd: Path, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        argv = [str(word) for word in (self.program, *words)]
        return subprocess.run(
            argv,
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environment},
        )


def install(folder: Path, version: str, migrations: dict[str, str]) -> Release:
    """Build a wheel of this tree as ``version``, with more migrations by name, and install it into ``folder``."""
    source = folder / "source"
    ignored = shutil.ignore_patterns("__pycache__")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, source / part, ignore=ignored)
        else:
            shutil.copy(ROOT / part, source / part)
    package = source / "yamlsched" / "__init__.py"
    package.write_text(
        re.sub(r'__version__ = "[^"]*"', f'__version__ = "{version}"', package.read_text())
    )
    later = source / "sql" / "migrations"
    later.mkdir(exist_ok=True)
    for name, text in migrations.items():
        (later / f"{name}.sql").write_text(text)
    wheels, target = folder / "wheels", folder / "venv"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=source, check=True, capture_output=True)
    [wheel] = wheels.glob(f"yamlsched-{version}-*.whl")

    venv.create(target, symlinks=True)
    python = target / "bin" / "python"
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(target)}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    release = Release(target)
    release.program.write_text(f"#!{python}\nfrom yamlsched.__main__ import main\nmain()\n")
    release.program.chmod(0o755)
    shown = release.run("--version", cwd=folder)
    assert version in shown.stdout, shown
    return release
