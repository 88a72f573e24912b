"""Validity of a page, without a browser."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "img", "br", "link", "input", "hr", "wbr"}
"""Elements that have no end tag."""
EMPTY_ALLOWED = {"line", "path", "rect"}
"""Elements of SVG that may end in their start tag."""
INLINE = {"strong", "span", "code", "b", "i", "wbr"}
"""Inline elements."""


class PageCheck(HTMLParser):
    """Collects faults: tags that do not match, ids that are used twice, anything from outside."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: set[str] = set()
        self.faults: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag, attrs):
        self._look_at(tag, attrs)
        if tag not in INLINE:
            self.text.append(" ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self._look_at(tag, attrs)
        if tag not in EMPTY_ALLOWED:
            self.faults.append(f"<{tag}/>")

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append(f"</{tag}> at {self.getpos()}")

    def handle_data(self, data):
        if self.open and self.open[-1] == "style":
            if re.search(r"url\(|@import|<", data):
                self.faults.append("a style that loads something")
        else:
            self.text.append(data)

    def _look_at(self, tag, attrs):
        names = [name for name, _ in attrs]
        attributes = dict(attrs)
        self.elements.append((tag, attributes))
        if tag in ("script", "iframe", "object", "embed", "link", "form", "base", "a"):
            self.faults.append(f"<{tag}>")
        if len(names) > len(attributes):
            self.faults.append(f"<{tag}> has an attribute twice")
        for name, value in attrs:
            if name.startswith("on"):
                self.faults.append(f"<{tag} {name}>")
            if name in ("src", "href", "srcset", "action", "data") and not (value or "").startswith(
                "data:image/png;base64,"
            ):
                self.faults.append(f"<{tag} {name}={value}>")
            if name == "id":
                if value in self.ids:
                    self.faults.append(f"id {value} twice")
                self.ids.add(value)


def checked(html: str) -> PageCheck:
    """Parse a page; `faults` is empty for a good one."""
    check = PageCheck()
    check.feed(html)
    check.close()
    check.faults += [f"<{tag}> stays open" for tag in check.open]
    controls = re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", html)
    if controls:
        check.faults.append(f"character {controls[0]!r}")
    return check


def text_of(html: str) -> str:
    """Text of a page, with single spaces."""
    return " ".join("".join(checked(html).text).split())
