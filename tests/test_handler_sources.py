"""Reading the source of handlers never contradicts importing them and binding the payload."""

from __future__ import annotations

import compileall
import itertools
import json
import os
import shutil
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from yamlsched.schedule import checks, handlers, lookup
from yamlsched.schedule.findings import Findings
from yamlsched.schedule.load import Loaded, load
from yamlsched.schedule.lookup import Sources
from yamlsched.schedule.source import Diagnostic

NUMBERS = itertools.count()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules, which are removed from sys.modules afterwards."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        module_file = getattr(sys.modules[name], "__file__", None) or ""
        if module_file.startswith(str(tmp_path)) or name.startswith(("m0", "pkg")):
            del sys.modules[name]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def job(handler: str, **payload: Any) -> str:
    return f'version: 1\njobs: {{x: {{cron: "0 5 * * *", handler: "{handler}", payload: {json.dumps(payload)}}}}}\n'


def found(loaded: Loaded, *folders: Path, imports: bool = False) -> list[Diagnostic]:
    findings = Findings(loaded.source)
    handlers.check(loaded, Sources(folders), findings, imports)
    return findings.diagnostics()


def by_reading(folder: Path, text: str) -> list[Diagnostic]:
    loaded = load(text.encode(), "schedules.yaml", None)
    assert not loaded.has_errors, loaded.diagnostics
    return found(loaded, folder, *(Path(entry) for entry in sys.path if entry))


def by_import(folder: Path, text: str) -> list[Diagnostic]:
    import importlib

    importlib.invalidate_caches()
    path = (Path(entry) for entry in sys.path if entry)
    return found(load(text.encode(), "schedules.yaml", None), folder, *path, imports=True)


RIGHT = {
    "unpacking": "def _a(): ...\ndef _b(): ...\nrun, stop = _a, _b",
    "starred": "def _a(): ...\nrun, *rest = _a, 1",
    "branches": "import sys\nif sys.argv:\n  def run(): ...\nelse:\n  def run(region): ...",
    "fallback to a value": "try:\n  from os import getcwd as run\nexcept ImportError:\n  run = None",
    "fallback to a function": "try:\n  from nowhere import run\nexcept ImportError:\n  def run(): ...",
    "globals": "for name in ['run']:\n  globals()[name] = lambda: None",
    "globals over a value": "run = None\nglobals().update(run=lambda: None)",
    "setattr": "import sys\nsetattr(sys.modules[__name__], 'run', lambda: None)",
    "vars": "vars()['run'] = lambda: None",
    "exec": "exec('def run(): ...')",
    "a loop": "for run in [lambda: None]: pass",
    "a loop over a value": "run = None\nfor run in [lambda: None]: pass",
    "walrus": "print((run := lambda: None) and '')",
    "walrus over a value": "run = 5\nif (run := (lambda: None)): pass",
    "with": "import contextlib\nwith contextlib.nullcontext(lambda: None) as run: pass",
    "match": "match [lambda: None]:\n  case [run]: pass",
    "a class": "class run:\n  pass",
    "a class with arguments": "class run:\n  def __init__(self, a=1): ...",
    "an instance": "class C:\n  def __call__(self): ...\nrun = C()",
    "a star import": "from functools import *\ndef run(): ...",
    "a star import below": "def run(a): ...\nfrom m0_other import *",
    "a decorator": "import functools\n@functools.cache\ndef run(): ...",
    "a decorator that adds": "def give(f): return lambda: f(1)\n@give\ndef run(a): ...",
    "wrapped below": "def run(a): ...\nrun = (lambda f: lambda: f(1))(run)",
    "partial": "import functools\nrun = functools.partial(print, 1)",
    "partial of its own": "import functools\ndef go(a): ...\nrun = functools.partial(go, a=1)",
    "lambda": "run = lambda: None",
    "type checking": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  def run(a): ...\nelse:\n"
    "  run = lambda: None",
    "overload": "from typing import overload\n@overload\ndef run(a: int): ...\n@overload\ndef run(): ...\n"
    "def run(a=None): ...",
    "a global over a value": "run = 0\ndef make():\n  global run\n  run = lambda: None\nmake()",
    "module getattr": "def __getattr__(name):\n  if name == 'run': return lambda: None\n  raise AttributeError(name)",
    "module getattr beside a branch": "def __getattr__(name): return print\nif 0:\n  def run(a): ...",
    "a builtin": "from builtins import print as run",
    "a declared name": "run: object\nrun = lambda: None",
    "its own replacement": "import sys, types\nclass M(types.ModuleType):\n  def run(self): ...\n"
    "sys.modules[__name__] = M(__name__)",
    "methods of pandas are no evidence": "def run(frame=None):\n  return frame and frame.eval('a')",
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_handler_that_can_be_imported_and_bound_is_not_reported(folder: Path, case: str):
    # the module of the case "self import" imports itself by this name
    write(folder, {"m0_name.py": RIGHT[case] + "\n", "m0_other.py": "def run(): ...\n"})

    assert by_import(folder, job("m0_name.run")) == []
    assert by_reading(folder, job("m0_name.run")) == []


WRONG = {
    "YS302": "def rnu(): ...",
    "YS306 generator": "def run():\n  yield 1",
    "YS306 asynchronous generator": "async def run():\n  yield 1",
    "YS305": "def run(a): ...",
    "YS305 position": "def run(a, /): ...",
    "YS307": "def run(:",
}


@pytest.mark.parametrize("case", WRONG)
def test_reading_the_source_reports_what_importing_reports(folder: Path, case: str):
    write(
        folder,
        {"m0_name.py": WRONG[case] + "\n", "m0_values.py": "number = 5\ndef needs(a): ...\n"},
    )

    assert [one.code for one in by_reading(folder, job("m0_name.run"))] == [case[:5]]
    assert [one.code for one in by_import(folder, job("m0_name.run"))] == [case[:5]]


UNKNOWN = {
    "YS306 a value": "run = 5",
    "YS306 a module": "import os as run",
    "a function of another module": "from m0_values import needs as run",
    "a function beside a star import": "from functools import *\ndef run(a): ...",
    "a decorated function": "import functools\n@functools.cache\ndef run(a): ...",
    "YS309 a name that only a call can bind": "globals().update(rnu=print)",
    "a function in a branch": "import sys\nif sys.argv:\n  def run(a): ...",
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_has_no_plain_definition_in_its_module_is_checked_by_importing_it_alone(
    folder: Path, case: str
):
    write(folder, {"m0_name.py": UNKNOWN[case] + "\n", "m0_values.py": "def needs(a): ...\n"})

    code = case[:5] if case.startswith("YS") else "YS305"
    assert by_reading(folder, job("m0_name.run")) == []
    assert [one.code for one in by_import(folder, job("m0_name.run"))] == [code]


CLASS = """
class Mailer:
    limit = 5
    @staticmethod
    def send(to=None): ...
    @classmethod
    def make(cls): ...
    def method(self): ...
    def plain(): ...
    for each in "a":
        def looped(a): ...
    looped = plain

class Derived(Mailer):
    pass"""


@pytest.mark.parametrize(
    "name, code",
    {
        "m0_name:Mailer.send": "",
        "m0_name:Mailer.make": "",
        "m0_name:Mailer.plain": "",
        "m0_name:Mailer.looped": "",
        "m0_name:Derived.send": "",
        "m0_name.Mailer.send": "YS303",
        "m0_again:Mailer.send": "",
    }.items(),
)
def test_a_method_is_named_after_a_colon(folder: Path, name: str, code: str):
    write(folder, {"m0_name.py": CLASS, "m0_again.py": "from m0_name import Mailer\n"})

    found = by_reading(folder, job(name))

    assert [one.code for one in found] == [code] * bool(code)
    assert (by_import(folder, job(name)) == []) == (not code)


def test_a_worker_resolves_every_path_that_importing_accepts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    from yamlsched.handler.calls import resolve

    write(folder, {"m0_name.py": CLASS})
    monkeypatch.syspath_prepend(str(folder))

    assert callable(resolve("m0_name:Mailer.send"))
    assert by_import(folder, job("m0_name:Mailer.send")) == []


def test_a_module_without_source_is_not_reported(folder: Path):
    write(
        folder,
        {"m0_name.py": "def run(): ...\n", "pkg/__init__.py": "", "pkg/sub.py": "def run(): ...\n"},
    )
    compileall.compile_dir(folder, quiet=1, legacy=True)
    for source in folder.rglob("*.py"):
        source.unlink()
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)

    for handler in ("m0_name.run", "pkg.sub.run"):
        assert by_import(folder, job(handler)) == []
        assert by_reading(folder, job(handler)) == []


PACKAGES: dict[str, dict[str, str]] = {
    "modules made at run time": {
        "pkg/__init__.py": "import sys, types\nm = types.ModuleType('pkg.sub')\nm.run = lambda: None\n"
        "sys.modules['pkg.sub'] = m\n"
    },
    "a package whose modules lie elsewhere": {
        "pkg/__init__.py": "import os\n__path__.append(os.path.join(os.path.dirname(__file__), '..', 'other'))\n",
        "other/sub.py": "def run(): ...\n",
    },
    "a module that is a package": {
        "pkg.py": "import os\n__path__ = [os.path.join(os.path.dirname(__file__), 'other')]\n",
        "other/sub.py": "def run(): ...\n",
    },
    "no __init__.py": {
        "pkg/sub.py": "from .other import run\n",
        "pkg/other.py": "def run(): ...\n",
    },
}


@pytest.mark.parametrize("case", PACKAGES)
def test_packages_are_resolved_as_the_import_system_does(folder: Path, case: str):
    write(folder, PACKAGES[case])

    assert by_import(folder, job("pkg.sub:run")) == []
    assert by_reading(folder, job("pkg.sub:run")) == []
    if not by_import(folder, job("pkg:run")):
        assert by_reading(folder, job("pkg:run")) == []


@pytest.mark.parametrize("init", [True, False])
def test_a_path_that_ends_in_a_module_is_reported(folder: Path, init: bool):
    write(folder, {"pkg/sub.py": "def run(): ...\n", **({"pkg/__init__.py": ""} if init else {})})

    [found] = by_reading(folder, job("pkg.sub"))

    assert (found.code, found.remedy) == ("YS306", "Add the name of a function: pkg.sub.function.")
    assert "pkg.sub is a module, not a function" in found.message
    assert by_import(folder, job("pkg.sub")) != []
    assert [one.code for one in by_reading(folder, job("pkg.sbu"))] == ["YS302"]


STATEMENTS = [
    "def run(): ...",
    "def run(a): ...",
    "def run(a=1, *, b=2): ...",
    "def run(*args, **kw): ...",
    "def run():\n  yield",
    "async def run(a): ...",
    "class run:\n  def __init__(self, a): ...",
    "run = 5",
    "run = lambda a: None",
    "run: int",
    "run, other = (lambda: 0), 1",
    "from m0_values import needs as run",
    "from m0_values import number as run",
    "from m0_values import *",
    "import os as run",
    "del run",
    "globals()['run'] = print",
    "import functools; run = functools.partial(print, 1)",
    "pass",
    "def other():\n  global run\n  run = 5",
    "def other(run):\n  run.x = 1",
    "other()",
]
WRAPPERS = [
    "{}",
    "if True:\n{}",
    "if not True:\n{}",
    "try:\n{}\nexcept Exception: pass",
    "try:\n  1 / 0\nexcept ZeroDivisionError:\n{}",
    "for each in [1]:\n{}",
    "for each in []:\n{}",
    "class Inner:\n{}",
    "def inner():\n{}",
    "with open(__file__):\n{}",
]


@st.composite
def modules(draw: st.DrawFn) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        statement, wrapper = draw(st.sampled_from(STATEMENTS)), draw(st.sampled_from(WRAPPERS))
        if wrapper.startswith(("class", "def")) and "import *" in statement:
            continue  # not valid Python
        inner = (
            statement
            if wrapper == "{}"
            else "\n".join("  " + line for line in statement.splitlines())
        )
        parts.append(wrapper.format(inner))
    return "\n".join(parts) + "\n"


@settings(max_examples=100)
@given(text=modules(), payload=st.sampled_from([{}, {"a": 1}, {"b": 1}, {"c": 1}]))
@example("def run(a): ...\n" + 2 * "if not True:\n  def run(): ...\n", {"a": 1})
def test_no_valid_handler_is_reported_however_its_name_is_bound(
    folder: Path, text: str, payload: dict[str, int]
):
    name = f"m0_{next(NUMBERS)}"
    write(folder, {f"{name}.py": text, "m0_values.py": "number = 5\ndef needs(a): ...\n"})
    schedule = job(f"{name}.run", **payload)

    reported = by_reading(folder, schedule)

    sys.modules.pop("m0_values", None)  # an earlier module may have changed its content
    if reported:
        assert by_import(folder, schedule) != [], (text, payload, reported)
    (folder / f"{name}.py").unlink()


# --- bounds ------------------------------------------------------------------------------------------------------


def test_a_file_with_many_handlers_is_read_and_parsed_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    # given 300 handlers in one module, 100 of them re-exported by modules of their own
    functions = "".join(f"def run_{n}(): ...\n" for n in range(300))
    write(folder, {"m0_many.py": functions})
    write(
        folder,
        {f"m0_of/m{n}.py": f"from m0_many import run_{n}\n" for n in range(100)}
        | {"m0_of/__init__.py": ""},
    )
    names = [f"m0_many.run_{n}" for n in range(300)] + [f"m0_of.m{n}.run_{n}" for n in range(100)]
    jobs = "".join(f"  j{n}: {{handler: {name}}}\n" for n, name in enumerate(names))
    loaded = load(f"version: 1\njobs:\n{jobs}".encode(), "s.yaml", None)
    opened: list[Path] = []

    def counting_open(file: Path, mode: str) -> Any:
        opened.append(file)
        return open(file, mode)

    monkeypatch.setattr(lookup, "open", counting_open, raising=False)

    assert found(loaded, folder) == []

    assert len(opened) == len(set(opened)) == 101


def test_a_misspelt_name_is_compared_with_a_bounded_number_of_others(folder: Path):
    names = [f"run_{n:03}" for n in range(lookup.MAX_CANDIDATES + 1)]
    write(folder, {"m0_many.py": "".join(f"def {name}(): ...\n" for name in names)})

    near = [by_reading(folder, job(f"m0_many.{name}x"))[0].remedy for name in (names[0], names[-1])]

    assert near[0] == 'Did you mean "run_000"?'
    assert f'"{names[-1]}"' not in near[1]


def test_each_check_reads_the_files_as_they_are_now(folder: Path):
    schedule = job("m0_name.run")
    write(folder, {"m0_name.py": "def rnu(): ...\n"})
    loaded = load(schedule.encode(), "schedules.yaml", None)
    errors = checks.check(loaded, folder / "schedules.yaml", []).errors

    write(folder, {"m0_name.py": "def run(): ...\n"})

    assert [one.code for one in errors] == ["YS302"]
    assert checks.check(loaded, folder / "schedules.yaml", []).errors == []


def test_reading_the_source_of_handlers_emits_no_python_warning(folder: Path):
    write(folder, {"m0_name.py": 'def run():\n  "\\d"\n  assert (1, "x")\n'})

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert by_reading(folder, job("m0_name.run")) == []


def test_folders_that_are_not_packages_are_not_listed(folder: Path):
    write(folder, {"m0_of/__init__.py": "", "m0_of/good/__init__.py": ""})
    for name in ("bad\n::error::x", "bad\x1b[2J", "has-dash"):
        (folder / "m0_of" / name).mkdir()
        (folder / "m0_of" / name / "__init__.py").touch()

    [found] = by_reading(folder, job("m0_of.nothing.run"))

    assert found.remedy == "It has: good."


def test_a_folder_that_cannot_be_read_does_not_crash_the_checks(folder: Path):
    write(folder, {"m0_of/__init__.py": ""})
    os.symlink("loop.py", folder / "m0_of" / "loop.py")

    assert [one.code for one in by_reading(folder, job("m0_of.loop.run"))] == ["YS303"]
