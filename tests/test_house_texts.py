"""The house rules about texts and the tree: plain words, few entries, links that exist."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

from tests import sources
from tests.sources import ROOT, SRC, shown

PACKAGE_ENTRIES, ROOT_ENTRIES, LAYERS = 23, 14, 12
VERBS = ["setup", "demo", "test", "check", "soak", "bench", "docs"]

# Phrases that a reader has to decode; the plain word is on the right. Each space also matches a line break.
UNPLAIN = {
    r"whoever": "the caller, the worker, anyone who",
    r"how-manieth": "occurrence",
    r"step(?:s|ped|ping)? aside": "suspends",
    r"set(?:s|ting)? aside": "reserves",
    r"by (?:itself|themselves)": "automatically, in the background",
    r"go(?:es|ing)? on": "continues, resumes",
    r"hand(?:s|ed|ing)? on": "passes",
    r"anew": "again",
    r"c[ao]mes? of": "the result of",
    r"(?:is|are) told": "is notified",
    r"is left to (?:others|the|a|another)": "name who does it",
    r"in vain": "without success",
    r"what there is": "name the things",
    r"where there is one": "if there is one",
    r"of (?:ours|yours)": "our, your",
    r"(?<!there.)is no (?:name|span of time)": "is not a, is invalid",
    r"cannot be(?=[.,;:)])": "is impossible, is invalid",
    r"put(?:s|ting)? (?:\w+ )?to sleep": "suspends",
    r"hears": "is notified",
    r"g[ai]ve(?:s|n)? back": "releases, returns",
}


def test_no_text_contains_a_path_of_a_machine_or_a_todo() -> None:
    unwanted = re.compile("|".join(["/" + "root/", "/" + "work/", "TO" + "DO", "FIX" + "ME", "X" * 3]))

    assert [shown(file) for file in sources.texts() if unwanted.search(file.read_text())] == []


def test_no_text_has_a_phrase_that_a_reader_must_decode() -> None:
    found = sources.found(UNPLAIN, but=Path(__file__))

    assert not found, "\n".join(found)


def test_the_package_has_few_entries() -> None:
    assert len([entry for entry in SRC.iterdir() if entry.name != "__pycache__"]) <= PACKAGE_ENTRIES


def test_the_root_of_the_repository_has_few_entries() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert len({line.split("/")[0] for line in tracked.splitlines()}) <= ROOT_ENTRIES


def test_imports_have_few_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["name"] == "Imports go downwards only"]

    assert len(layers) <= LAYERS


def test_the_paths_that_the_guide_for_contributors_names_exist() -> None:
    named = sources.paths_in(ROOT / "CONTRIBUTING.md")

    assert "tests/test_house.py" in named
    assert [path for path in named if not (ROOT / path).exists() and not (SRC / path).exists()] == []


def test_make_without_arguments_lists_the_targets() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    said = subprocess.run(["make"], cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout

    assert [verb for verb in VERBS if not re.search(rf"^ *make {verb} +\S", said, re.MULTILINE)] == []


def test_links_between_pages_exist() -> None:
    for page in sources.PROSE:
        links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
        assert [to for to in links if not to.startswith("http") and not (page.parent / to).exists()] == [], shown(page)


def test_the_index_links_every_page_of_the_docs() -> None:
    docs = ROOT / "docs"
    listed = "\n".join((docs / name).read_text() for name in ("index.md", "decisions/README.md"))
    pages = [page for page in sources.PROSE if docs in page.parents and page.name not in ("index.md", "README.md")]

    assert [shown(page) for page in pages if page.name not in listed] == []
