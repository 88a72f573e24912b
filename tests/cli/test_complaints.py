"""What is told beside the results, each with who says it."""

from __future__ import annotations

import logging

from maxslices.cli import methods


def test_what_a_method_logs_is_told_as_a_warning(cli, monkeypatch):
    def handle(parsed):
        logging.getLogger("somebodys.methods").warning("the axis is %d pixels off", 7)
        logging.getLogger("somebodys.methods").info("not told")
        return "done"

    monkeypatch.setattr(methods, "handle", handle)
    before = logging.getLogger().handlers[:]
    assert cli("methods") == (0, "done\n", "maxslices: warning: the axis is 7 pixels off\n")
    assert logging.getLogger().handlers == before
