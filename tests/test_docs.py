"""Every example in the README and the docs: Python and commands are run, and their output compared.

Python that begins with a comment such as ``# my_module.py`` is written to that file, to be imported
by later examples; so is YAML that begins with ``# name.yaml``. A text block is what the example
before it printed, or the message of its error. Commands in indented blocks are not run; those of
maxslices are parsed, as are those within sentences.
"""

import contextlib
import doctest
import importlib.util
import linecache
import os
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import click
import pytest

import maxslices
from maxslices import Pipeline, registry
from maxslices.cli.main import app, main
from maxslices.demo.phantom import flower_head
from maxslices.demo.scan_file import make_scan
from maxslices.devices.cpu import CpuBackend
from maxslices.testing import EstimateError

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "methods" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs").glob("[a-z]*/*.md")),
]
NAMES = [str(page.relative_to(ROOT).with_suffix("")) for page in PAGES]
OUTSIDE = ("make", "pip")
"""Programs whose commands are read and not run: targets and extras are looked up."""
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


FILE_NAME = re.compile(r"# (\w+)\.py$", re.MULTILINE)
HAS_NETWORKS = importlib.util.find_spec("maxslices.nn") is not None
PERCENT = re.compile(r"(?<![\d.,])\d+(?= ?%)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")
INDENTED = re.compile(r"^ {4,}(?:[A-Z_]+=\S+ )?(maxslices \S.*)", re.MULTILINE)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a small scan. Methods that examples register are removed at the end."""
    folder = tmp_path / "lab"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    methods = {meta.full_name for meta in registry}
    make_scan(Path("scan.nxs"), flower_head(rows=8, columns=96), n_angles=61, shift=0.8)
    modules = set(sys.modules)
    yield folder
    for module in {meta.module for meta in registry if meta.full_name not in methods}:
        registry.forget(module)
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) == str(folder / f"{name}.py"):
            del sys.modules[name]


def blocks(page):
    return [(match[1], match[2]) for match in BLOCK.finditer(page.read_text())]


def same_text(printed, expected):
    """Whether every expected line was printed; numbers to a hundredth, percents to one."""
    lines = iter(printed.splitlines())
    return all(any(same_line(line, each) for line in lines) for each in expected.splitlines())


def same_line(printed, expected):
    percents = [list(map(int, PERCENT.findall(text))) for text in (printed, expected)]
    printed, expected = (PERCENT.sub("", text) for text in (printed, expected))
    numbers = [
        [float(n.replace(",", "")) for n in NUMBER.findall(text)] for text in (printed, expected)
    ]
    words = [" ".join(NUMBER.sub("0", text).split()) for text in (printed, expected)]
    return (
        words[0] == words[1]
        and numbers[0] == pytest.approx(numbers[1], rel=0.01)
        and percents[0] == pytest.approx(percents[1], abs=1)
    )


def write_yaml(text):
    name = re.match(r"# (\w+\.yaml)$", text, re.MULTILINE)
    if name:
        path = Path(name[1])
    else:
        path = Path("another.yaml" if Path("pipeline.yaml").exists() else "pipeline.yaml")
    path.write_text(text)
    Pipeline.from_file(path)


def write_module(name, text):
    Path(f"{name}.py").write_text(text)
    linecache.checkcache()
    if sys.modules.pop(name, None):  # as in a new process
        registry.forget(name)


def run_commands(text):
    for line in text.splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        if program == "maxslices" and ">" in arguments:
            *arguments, _, name = arguments
            with open(name, "w") as file, contextlib.redirect_stdout(file):
                assert main(arguments) == 0, line
        elif program == "maxslices":
            assert main(arguments) == 0, line
        elif program == "pytest":
            options = "-q -p no:cacheprovider --maxslices-examples 20 --maxslices-device cpu"
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *arguments],
                env={**os.environ, "PYTEST_ADDOPTS": options},
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            print(done.stdout, done.stderr)
            assert done.returncode == 0, done.stdout
        elif program == "python":
            (script,) = arguments
            runpy.run_path(script, run_name="__main__")
        else:
            assert program in OUTSIDE, line


def run_python(page, text, namespace):
    if text.startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(text, namespace, page.name, None, 0)
        runner = doctest.DocTestRunner()
        runner.run(test, clear_globs=False)
        assert runner.failures == 0
    elif name := FILE_NAME.match(text):
        write_module(name[1], text)
    else:
        exec(compile(text, page.name, "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_examples(page, workplace, capsys):
    namespace = {"__name__": f"docs_{page.stem}"}
    examples, printed = blocks(page), ""
    if importlib.util.find_spec("torch") is None and any(
        "import torch" in text for _, text in examples
    ):
        pytest.skip("torch is not installed")
    if not HAS_NETWORKS and any("maxslices.nn" in text for _, text in examples):
        pytest.skip("the folder of networks is away")
    for (language, text), (following, _) in pairwise([*examples, ("", "")]):
        if language == "text":
            assert same_text(printed, text), f"{page.name} shows\n{text}\nbut printed\n{printed}"
        elif language == "yaml":
            write_yaml(text)
        elif language == "toml":
            tomllib.loads(text)
        elif language in ("console", "python"):
            try:
                if language == "console":
                    run_commands(text)
                else:
                    run_python(page, text, namespace)
            except EstimateError as error:
                if following != "text":
                    raise
                print(error)
            printed = capsys.readouterr().out
        else:
            pytest.fail(f"{page.name} has a block of {language}, which is not tested")


@pytest.mark.parametrize("free_bytes", [4 * 10**9, 10**12])
def test_the_example_of_plan_does_not_depend_on_free_memory(monkeypatch, free_bytes):
    monkeypatch.setattr(CpuBackend, "free_bytes", lambda self: free_bytes)
    example = doctest.DocTestFinder().find(maxslices.plan, "plan", module=False, globs={})
    assert doctest.DocTestRunner().run(example[0]).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_and_pictures_are_there(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            target = target.removeprefix("notebooks/")  # is made of the tutorial
            assert (page.parent / target).exists(), target


def shown_commands(page):
    """Commands of maxslices in indented blocks, outside of the blocks that are run."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    return INDENTED.findall(text.replace("\\\n", " "))


def understood(command, arguments, context):
    """Parse a command line of maxslices; its files need not be there, a name alone is one."""
    if isinstance(command, click.Group) and arguments:
        name, inner, rest = command.resolve_command(context, arguments)
        understood(inner, rest, click.Context(inner, info_name=name, parent=context))
    elif arguments:
        command.parse_args(context, arguments)


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_that_are_not_run_are_understood(page):
    sentences = re.findall(r"`(maxslices [^`]+)`", page.read_text())
    for line in [*shown_commands(page), *sentences]:
        _, *arguments = shlex.split(line.partition(" > ")[0], comments=True)
        is_synopsis = arguments[0].isupper() or any(
            "[" in each or "|" in each or "..." in each for each in arguments
        )
        if is_synopsis or (not HAS_NETWORKS and arguments[0] == "nn"):
            continue
        try:
            understood(app, arguments, click.Context(app, info_name="maxslices"))
        except click.UsageError as error:
            pytest.fail(f"{page.name}: {line}: {error.format_message()}")


def test_files_that_are_named_are_there():
    name = re.compile(
        r"`(?:python )?((?:docs|tests|methods|\.github|conda|\w+)/[\w/.-]+\.(?:py|xz|yaml))"
    )
    roots = (ROOT, ROOT / "src" / "maxslices", ROOT / "src" / "maxslices" / "nn")
    for page in PAGES:
        for path in name.findall(page.read_text()):
            if "nn/" in path and not HAS_NETWORKS:
                continue
            assert any((root / path).exists() for root in roots), f"{page.name}: {path}"


def test_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(
            r"(?:^    |`|\$ )make (\w+)(?![\w=])", page.read_text(), re.MULTILINE
        ):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"


def test_extras_that_are_named_are_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lists = [re.findall(r"(?:maxslices|\.)\[([\w,-]+)\]['`]", page.read_text()) for page in PAGES]
    named = {extra for matches in lists for extras in matches for extra in extras.split(",")}
    assert {"run", "cuda12", "cuda13", "torch"} <= named <= set(project["optional-dependencies"])


def test_links_and_pictures_of_the_readme_lead_somewhere_from_a_package_index():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    text = (ROOT / "README.md").read_text()
    n_links = len(re.findall(r"\]\(", text))
    for each in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    home = project["project"]["urls"]["Homepage"]
    here = re.findall(rf"(!?)\[[^]]*\]\({home}/(raw|blob)/v\$HFPR_VERSION/([^)#]+)", text)
    assert (
        len(here) + len(re.findall(r"\]\(https://(?!github.com/maxslices)", text)) == n_links > 10
    )
    for is_picture, kind, path in here:
        assert kind == ("raw" if is_picture else "blob")
        assert (ROOT / path).is_file(), path


def test_no_entry_of_the_index_leads_to_an_empty_place():
    """Sphinx's search fails with an error where an entry's anchor has no text behind it."""
    for page in PAGES:
        assert not re.search(r"^```\{index\}.*\n```\n\s*#", page.read_text(), re.MULTILINE), page
