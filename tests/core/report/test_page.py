"""The page is true, whole, self-contained and safe for every kind of run."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import pytest

from curateevo.api.errors import ContractBroken
from curateevo.api.evolution import EvolutionPhase, EvolutionStatus, Reason, Verdict, VersionPhase
from curateevo.local.objects import RunFolder
from curateevo.report.page import MAX_BYTES, write_report
from curateevo.report.sections import cluster_of
from curateevo.report.wording import PHASES, REASONS, VERSION_PHASES
from tests.core.report import runs

Make = Callable[[Path], RunFolder]
KINDS: tuple[Make, ...] = (
    runs.complete,
    runs.stopped_early,
    runs.refused,
    runs.failed_model,
    runs.failed_baseline,
    runs.interrupted,
    runs.floors_only,
    runs.fresh,
    runs.hostile,
    runs.odd,
)
VOID = {"meta", "br", "img", "link", "input", "hr"}
SVG_VOID = {"path", "circle", "polygon"}


class Reader(HTMLParser):
    """Tags with attributes, visible text, and whether every tag is closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.page = page
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in SVG_VOID
        self.tags.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


Pages = Callable[[Make], Reader]


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """The page about a kind of run, made and parsed once."""

    @cache
    def made(make: Make) -> Reader:
        root = tmp_path_factory.mktemp("page")
        target = write_report(make(root / "run"), root / "out" / "report.html")
        return Reader(target.read_text(encoding="utf-8"))

    return made


@pytest.fixture(params=KINDS, ids=lambda make: make.__name__)
def page(request: pytest.FixtureRequest, read: Pages) -> Reader:
    return read(request.param)


def test_every_kind_of_run_gives_a_well_formed_page(page: Reader) -> None:
    assert page.open == []
    names = [tag for tag, _ in page.tags]
    assert {"header", "main", "footer", "h1"} <= set(names)
    assert names.count("h1") == 1


def test_ids_are_unique_and_inner_links_lead_somewhere(page: Reader) -> None:
    tags = page.tags
    ids = [attrs["id"] for _, attrs in tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    links = [attrs["href"] for _, attrs in tags if "href" in attrs]
    assert {link.removeprefix("#") for link in links} <= set(ids)
    labels = [name for _, attrs in tags for name in attrs.get("aria-labelledby", "").split()]
    assert set(labels) <= set(ids)


def test_no_request_leaves_the_page(page: Reader) -> None:
    for tag, attrs in page.tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "embed", "form", "base", "image", "use"}
        assert not {"src", "srcset", "xlink:href", "action", "formaction", "data", "poster"} & set(attrs)
        assert not any(name.startswith("on") for name in attrs)
        assert attrs.get("href", "#").startswith("#")
        assert not any("://" in value for value in attrs.values())
    style = page.page.partition("<style>")[2].partition("</style>")[0]
    assert "url(" not in style and "@import" not in style
    assert "default-src 'none'" in page.page


@pytest.mark.parametrize("word", ["None", "nan", "NaN", "inf", "Undefined", "null"])
def test_what_is_missing_is_never_printed_as_a_python_value(page: Reader, word: str) -> None:
    assert not re.search(rf"(?<![\w./-]){word}(?![\w-])", page.words)


def test_no_object_is_printed_by_its_repr(page: Reader) -> None:
    assert not re.search(r"\b(Row|Section|Reason|Verdict|Mark|Focus|Cluster|Manifest)[.(]", page.words)


def test_the_page_is_bounded(page: Reader) -> None:
    assert len(page.page.encode()) < MAX_BYTES


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_equal_runs_give_equal_pages_and_nothing_is_left_beside_them(make: Make, tmp_path: Path) -> None:
    folder = make(tmp_path / "run")
    first = write_report(folder, tmp_path / "a" / "r.html").read_bytes()
    second = write_report(folder, tmp_path / "b" / "r.html").read_bytes()
    assert first == second
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["r.html"]


def test_a_page_is_replaced(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text("old", encoding="utf-8")
    assert write_report(runs.fresh(tmp_path / "run"), target) == target
    assert "Not started" in target.read_text(encoding="utf-8")


def test_a_folder_without_a_run_is_an_error_and_leaves_no_page(tmp_path: Path) -> None:
    with pytest.raises(ContractBroken):
        write_report(RunFolder(tmp_path / "nothing"), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_complete_run_names_every_version_verdict_and_reason(read: Pages) -> None:
    text = read(runs.complete).words
    for number in range(8):
        assert re.search(rf"\bv{number}\b", text)
    for candidate in runs.candidates():
        assert candidate.verdict is not None and candidate.reason is not None
        assert candidate.verdict.value in text
        assert candidate.reason.value in text
        assert candidate.message in text
        assert candidate.method in text
    assert Reason.NO_PROPOSAL.value in text and "no proposal for Efficiency by llm: nothing more to try" in text


def test_the_round_that_ended_the_run_without_a_candidate_stands_in_the_table(read: Pages) -> None:
    page = read(runs.refused)
    assert re.findall(r"\b(v\d) No candidate", page.words) == ["v1", "v2"]
    assert "refused 3 times, last: no such line" in page.words


def test_a_complete_run_tells_its_result_and_its_limits(read: Pages) -> None:
    text = read(runs.complete).words
    assert "Started 2026-09-21 14:13 UTC. Ended 2026-09-21 20:18 UTC, after 6 h 5 min." in text
    assert "Training noise is not covered" in text
    assert "With 240 sel tasks, a gain in P of 0.045 is seen one time in two" in text
    assert "From v0 to v7, success on 240 sealed tasks changed by +0.250" in text
    assert "do-nothing 0.167" in text and "untrained 0.110" in text
    assert "12 rows could not be read and were set aside; 7 trajectories were kept out" in text
    assert "Trajectories that do not fit the base model and so have no GRACE scores: 5." in text
    assert "skipped: every group had the same reward" in text
    assert "longest SFT row: 343 tokens of 384" in text
    assert "12 evolver calls, 110,400 tokens, 1.26 USD" in text
    assert "error: unknown tool get_wether" in text


def test_an_early_end_shows_what_p_could_be_and_never_what_it_was_so_far_as_p(read: Pages) -> None:
    page = read(runs.stopped_early)
    text = " ".join(page.text)
    assert "stopped early" in text and "at most 0.679" in text
    assert text.count("0.123") == text.count("P 0.123 so far, 0.679 at most") > 0


def test_only_the_champion_is_open(read: Pages) -> None:
    sections = [attrs for tag, attrs in read(runs.complete).tags if tag == "details" and attrs["id"] != "leaks"]
    assert [a["id"] for a in sections] == ["v0", "v1", "v2", "v3", "v4", "v5", "v7"]
    assert [a["id"] for a in sections if "open" in a] == ["v7"]


def test_the_chart_has_a_title_a_description_and_a_shape_per_verdict(read: Pages) -> None:
    page = read(runs.complete).page
    assert "version 4 Failed, P –" in page
    assert 'role="img"' in page and "<title id=" in page and "<desc id=" in page
    for kind in ("committed", "reverted", "rejected", "failed", "no-candidate"):
        assert f'class="mark {kind}"' in page


def test_a_failed_run_says_why(read: Pages) -> None:
    text = read(runs.failed_model).words
    assert "Failed" in text and "ContractBroken" in text and "no such model" in text
    assert "There are no versions." in text and "The sealed test was not run: there is no champion" in text


def test_a_failed_baseline_names_version_0(read: Pages) -> None:
    text = read(runs.failed_baseline).words
    assert "BaselineFailed" in text and "PolicyRejected" in text and "The time of its end is not recorded" in text


def test_an_interrupted_run_tells_how_far_it_came(read: Pages) -> None:
    text = read(runs.interrupted).words
    assert "In progress: testing a version" in text and "Has not ended." in text
    assert "In progress : training" in text and "Active, attempt 2 after 1 failure" in text
    assert "Not run yet" in text


def test_a_run_with_floors_only_shows_them(read: Pages) -> None:
    text = read(runs.floors_only).words
    assert "Floors on sel: do-nothing 0.167, untrained 0.110." in text and "Nothing has been measured yet." in text
    assert "7 trajectories were kept out" in text and "GRACE" not in text


def test_hostile_text_is_shown_as_text(read: Pages) -> None:
    found = read(runs.hostile)
    assert "<script" not in found.page.lower() and "<img" not in found.page
    assert "{{ 7*7 }}" in found.words, "data is not a template"
    for invisible in ("\u202e", "\u0000", "\u200b"):
        assert invisible not in found.page
    assert "‹U+202E›" in found.page


def test_huge_text_is_cut_and_the_cut_is_told(read: Pages) -> None:
    found = read(runs.hostile)
    assert runs.LONG[:1500] not in found.page
    assert "more characters)" in found.words and "more lines are left out of this page" in found.words
    assert "smaller clusters are left out" in found.words and "48 more notes" in found.words


def test_a_run_of_many_versions_fits_on_the_page_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    maker = runs.Maker(tmp_path / "run", runs.spec_of(tmp_path / "run"))
    for number in range(170):
        text = f"{'&' * 2000} {number}"
        maker.version(
            number,
            runs.Candidate(
                None, "m", Verdict.FAILED, Reason.PROGRAM_FAILED, text, stages=(), phase=VersionPhase.FAILED
            ),
        )
    folder = maker.evolution(EvolutionStatus(phase=EvolutionPhase.TESTING, decided=169))
    page = write_report(folder, tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < MAX_BYTES
    assert "older versions that were not committed are left out" in page and "v169" in page


def test_what_was_kept_out_is_told_by_suite_with_the_words(read: Pages) -> None:
    text = read(runs.complete).words
    assert "11 trajectories removed , which contain 10 of its tasks" in text.replace("removed,", "removed ,")
    assert "toolworld/refund/1" in text
    assert "where is it" in text
    assert "its task is held out for evaluation" in text


def test_what_was_rewritten_is_told_with_the_reasons_of_the_rest(read: Pages) -> None:
    assert "9 of 12 texts that were requested; not: budget 1, values 2" in read(runs.complete).words


def test_every_phase_and_reason_has_words() -> None:
    assert set(PHASES) == set(EvolutionPhase)
    assert set(REASONS) == set(Reason)
    assert set(VERSION_PHASES) == set(VersionPhase)


def test_a_cluster_says_what_was_seen_how_often_and_what_may_help(read: Pages) -> None:
    words = read(runs.complete).words
    assert "schema violation grounded execution gap 38 failures, 53.5 % (refund 19, shipping 12, account 6)" in words
    assert "Seen: a tool that does not exist, or arguments that do not fit it" in words
    assert "Perhaps: SFT rows break tool schemas" in words
    assert "May help: keep schema-valid rows only (changes SFT data)" in words


def test_a_name_from_an_llm_stands_before_the_mode() -> None:
    named = {**runs.cluster("loop", 4, "x" * 240), "name": "goes round in <b>circles</b>"}
    found = cluster_of(named)
    assert (found.name, found.mode) == ("goes round in <b>circles</b>", "loop, grounded execution gap")
    assert found.quotes[0][2] == "x" * 240 + "…"
    assert cluster_of({**named, "name": ""}).name == "loop"
