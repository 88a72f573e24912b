"""Pages and fragments: their content, and that they are valid and safe with any names."""

from __future__ import annotations

import numpy as np
import pytest

from maxslices.report_page.drawings import draw_slice
from maxslices.report_page.page import (
    plan_fragment,
    plan_page,
    run_fragment,
    run_page,
)

from .html_check import checked, text_of
from .reports import a_plan, a_report, everywhere

EVIL = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;{{ 7 * 7 }}{% raise %}"


def pages(name=""):
    """One of each kind, with a name in every text."""
    picture = draw_slice(f"result.h5{name}", np.eye(12, 16, dtype=np.float32), 64)
    report = everywhere(a_report({"warnings": ["it is 0"], "findings": ["too low"]}), name)
    report["side_results"] = {f"find.cor{name}": 12.5, f"other.x{name}": [name] * 9}
    plan = report["plan"]
    step = plan["sections"][0]["steps"][0]
    step["parameters"] = {f"size{name}": f"3{name}", "table": {name: [1, [name]]}}
    plan["made_for"]["versions"] |= {f"lab{name}": f"1.0{name}"}
    plan["notes"] = [f"a note{name}"]
    return {
        "plan page": plan_page(plan),
        "plan fragment": plan_fragment(plan),
        "run page": run_page(
            report,
            about={f"Sample{name}": f"a seed{name}"},
            defaults={step["method"]: {f"ind{name}": name}},
            pictures=[picture],
            warned=[f"so{name}"],
        ),
        "run fragment": run_fragment(report, [picture]),
    }


KINDS = list(pages())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["", EVIL, "\x00\x1b[31m\u202e\ud800\x85", "x" * 5000])
def test_pages_are_valid_and_load_nothing_with_any_names(kind, name):
    html = pages(name)[kind]
    assert checked(html).faults == []
    html.encode("utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_names_are_shown_unchanged_and_escaped(kind):
    html = pages(EVIL)[kind]
    assert "<script" not in html
    assert EVIL in "".join(checked(html).text)
    plain = {tag for tag, _ in checked(pages()[kind]).elements}
    assert {tag for tag, _ in checked(html).elements} == plain


@pytest.mark.parametrize("kind", ["plan page", "run page"])
def test_policy_of_a_page_allows_only_styles_and_its_pictures(kind):
    policies = [
        attributes["content"]
        for tag, attributes in checked(pages()[kind]).elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_the_check_itself_finds_faults():
    for html in (
        "<p><b></p></b>",
        "<p>",
        "<p id=a></p><p id=a></p>",
        "<img src='http://x/y.png'>",
        "<p onclick=''></p>",
        "<style>a { background: url(x) }</style>",
        "<script></script>",
        "<p>\x07</p>",
    ):
        assert checked(html).faults, html


def test_page_of_a_run_shows_its_figures():
    text = text_of(run_page(a_report()))
    for expected in (
        "scan.nxs: 180x64x256 uint16",
        "Ran on cpu in 2.6 s, within 40.0 MB of memory.",
        "Bound by computing: the methods set the pace.",
        "Section 1: 180 projections",
        "minus_log 180x64x256 float32 3.15 MB a block, declared",
        "6 blocks of 32 (block auto: 32 keep the device busy; all fit)",
        "Bound by computing, 50.0 MB/s: the methods set the pace.",
        "read 20 %, compute 70 %, idle 10 % of the time.",
        "estimated 11.0 MB measured 9.44 MB",
        "Allowed on cpu: 40.0 MB.",
        "opening 0.8 s",
        "out/result.h5",
        "maxslices 0.1.0",
        "cupy none",
    ):
        assert expected in text, expected


def test_plan_shows_the_part_of_a_scratch_file_in_memory():
    places = {"destination": "scratch file", "kept_bytes": 3_000_000}
    (section,) = a_plan()["sections"]
    plan = a_plan(sections=[section | places, section | {"origin": "scratch file"}])
    text = text_of(plan_page(plan))
    assert "a scratch file (3.00 MB of it in memory)" in text


def test_warnings_are_at_the_top_with_their_section():
    html = run_page(a_report({"warnings": ["it is NaN throughout"], "findings": ["too much"]}))
    text = text_of(html)
    assert "Section 1: it is NaN throughout Section 1: too much" in text
    assert text.index("NaN throughout") < text.index("Pipeline")
    assert 'class="warnings"' not in run_page(a_report())


def test_side_results_have_the_names_of_the_pipeline():
    pipeline = [
        {},
        {"method": "lab.find_center", "id": "centering", "side_outputs": {"cor": "axis"}},
        {"method": "lab.minus_log", "id": None, "side_outputs": {}},
        {"method": "lab.find_center", "id": "again", "side_outputs": {"cor": "axis2"}},
    ]
    plan = a_plan()
    plan["made_for"]["pipeline"] = pipeline
    values = {"find_center.cor": 128.2446, "find_center_2.cor": 128.5, "find_center.width": 3}
    text = text_of(run_page(a_report(plan=plan, side_results=values)))
    assert "centering.axis 128.245 (find_center.cor)" in text
    assert "again.axis2 128.5 (find_center_2.cor)" in text
    assert "find_center.width 3" in text


def test_bars_share_a_scale():
    page = run_page(
        a_report({"measured_bytes": 16_000_000}, a_plan({"estimated_bytes": 8_000_000}))
    )
    bars = [each for tag, each in checked(page).elements if tag == "i"]
    assert [bar["style"] for bar in bars] == ["width: 50.00%", "width: 100.00%"]


def test_blocks_are_counted_by_their_sizes():
    blocks = [
        {"first_slice": 0, "block": 60, "why": "planned"},
        {"first_slice": 60, "block": 40, "why": "memory ran out"},
    ]
    assert "4 blocks of 60, of 40 from projection 60" in text_of(
        run_page(a_report({"blocks": blocks}))
    )
    html = plan_page(a_plan({"n_slices": 10_000, "block": 1, "halo": [5, 5]}))
    assert "10,000 blocks of 1, halo 5+5" in text_of(html)


def test_a_section_for_side_results_alone_has_no_blocks():
    html = plan_page(a_plan({"on_blocks": False, "destination": "nothing"}))
    assert "reads a few projections only" in text_of(html)
    assert text_of(html).count("nothing is kept") == 1


def test_without_a_measurement_there_is_no_bar_for_one():
    html = run_page(a_report({"measured_bytes": None}, process_bytes=None))
    assert 'class="measured"' not in html
    assert "0 B" not in text_of(html)


def test_section_of_an_earlier_run_is_marked():
    text = text_of(run_page(a_report({"is_earlier": True, "idle_share": None})))
    assert "Ran before the run was stopped, in 1.5 s." in text
    assert "idle" not in text


def test_references_show_the_values_that_the_run_found():
    plan = a_plan()
    plan["made_for"]["pipeline"] = [
        {},
        {"method": "lab.find_center", "id": "centering", "side_outputs": {"cor": "axis"}},
    ]
    step = plan["sections"][0]["steps"][0]
    step["parameters"] = {"center": "${{centering.side_outputs.axis}}"}
    report = a_report(plan=plan, side_results={"find_center.cor": 699.5})
    text = text_of(run_page(report, defaults={step["method"]: {"center": None, "size": 3}}))
    assert "center = 699.5 Defaults size = 3" in text


def test_a_slice_has_a_scale_bar_and_a_colour_bar_with_a_unit():
    image = np.linspace(0, 2, 200 * 100).reshape(200, 100)
    drawn = draw_slice("row 3", image, 512, unit="1/pixel", pixel_um=6.5)
    html = run_page(a_report(), pictures=[drawn])
    assert "100 µm 0.011/pixel1.99 row 3" in text_of(html)
    bars = [
        attributes["style"]
        for tag, attributes in checked(html).elements
        if attributes.get("class") == "scale"
    ]
    assert bars == ["width: 15.38%"]


def test_a_page_of_several_sections_names_the_longest():
    (section,) = a_plan()["sections"]
    report = a_report(plan=a_plan(sections=[section, section]))
    report["sections"] = [report["sections"][0], report["sections"][0] | {"duration_s": 9.0}]
    text = text_of(run_page(report))
    assert "Section 2 (minus_log) took 9.0 s, bound by computing" in text
