"""Every example in the README and the docs: Python is run, commands are run, files are read."""

import doctest
import re
import shlex
from pathlib import Path

import pytest

from maxslices import Pipeline, registry
from maxslices.cli.main import build_parser, main
from maxslices.demo.phantom import flower_head
from maxslices.demo.scan import make_scan

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with a small scan and a pipeline; what examples register is forgotten again."""
    monkeypatch.chdir(tmp_path)
    registry.load_entry_points()
    monkeypatch.setattr(registry, "_methods", dict(registry._methods))
    make_scan(Path("scan.nxs"), flower_head(rows=8, columns=96), n_angles=61, shift=0.8)
    return tmp_path


def blocks(page):
    return [(match[1], match[2]) for match in BLOCK.finditer(page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples(page, workplace, capsys):
    namespace = {"__name__": f"docs_{page.stem}"}
    for language, text in blocks(page):
        if language == "yaml":
            path = workplace / "pipeline.yaml"
            if path.exists():
                path = workplace / "another.yaml"
            path.write_text(text)
            Pipeline.from_file(path)
        elif language == "console":
            for line in text.splitlines():
                program, *arguments = shlex.split(line.removeprefix("$ "))
                if program == "maxslices":
                    assert main(arguments) == 0, f"{line}\n{capsys.readouterr().err}"
        elif language == "python" and text.startswith(">>>"):
            test = doctest.DocTestParser().get_doctest(text, namespace, page.name, None, 0)
            runner = doctest.DocTestRunner()
            runner.run(test, clear_globs=False)
            assert runner.failures == 0, capsys.readouterr().out
        elif language == "python":
            exec(compile(text, page.name, "exec"), namespace)


def test_the_synopses_of_the_readme_are_those_of_the_command_line():
    subcommands = next(a for a in build_parser()._actions if a.dest == "command").choices
    lines = re.findall(r"^    maxslices (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert {line.split()[0] for line in lines} == set(subcommands)
    for line in lines:
        command, options = line.split()[0], re.findall(r"--[\w-]+", line)
        known = subcommands[command]._option_string_actions
        assert set(options) <= set(known), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_are_there(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_make_targets_are_there():
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:^    |`|\$ )make (\w+)", page.read_text(), re.MULTILINE):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{page.name}: make {target}"
