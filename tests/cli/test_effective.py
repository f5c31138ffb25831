"""The flags of a running server, as `kvctl flags` and the zoomed server pane show them."""

from dataclasses import replace

from tests.tui.mission import STEADY

from kvctl.core.cli.effective import effective_lines
from kvctl.core.documents.server import server_document
from kvctl.core.domain.servers.server import EffectiveFlag, Server
from kvctl.tui.present.server import setting_lines

FLAGS = (
    EffectiveFlag("mem-fraction-static", "0.88", "0.88", "preset hicache-bf16", "unset",
                  differs=("default",), moves_ceiling=True),
    EffectiveFlag("pp-max-micro-batch-size", "96", None, None, "unset", "2048",
                  ("default", "run time"), moves_ceiling=True),
    EffectiveFlag("attention-backend", "fa3", "\x1b[31mtriton", "preset hicache-bf16", "unset",
                  differs=("given", "default")),
)  # fmt: skip


def server(*, known: bool = True) -> Server:
    assert STEADY.server is not None
    return replace(STEADY.server, effective=FLAGS, are_defaults_known=known)


def test_the_ones_that_move_the_ceiling_are_a_table_of_their_own_and_first() -> None:
    lines = list(effective_lines(server()))
    assert lines.index("they move the KV ceiling:") < lines.index("others:")
    assert any("0.88 (preset hicache-bf16)" in line for line in lines)
    assert any("96 (start: 2048)" in line and "run time" in line for line in lines)
    assert "\x1b" not in "".join(lines)


def test_unknown_defaults_are_said_not_guessed() -> None:
    assert not any("not known" in line for line in effective_lines(server()))
    assert any("not known" in line for line in effective_lines(server(known=False)))


def test_the_pane_shows_value_start_given_and_default_of_each_and_marks_what_differs() -> None:
    texts = ["".join(cell.text for cell in line.cells) for line in setting_lines(server(), 120)]
    assert texts[0].startswith("*mem-fraction-static")
    assert "start 2048" in texts[1] and "96" in texts[1]
    assert "given" in texts[2] and "\x1b" not in texts[2]
    assert all(len(text) == 120 for text in texts)
    # Variables and flags that /server_info does not tell are still there.
    assert len(texts) > len(FLAGS)


def test_the_status_document_has_them() -> None:
    document = server_document(server(), STEADY.at)
    assert [flag["name"] for flag in document["effective_flags"]] == [f.name for f in FLAGS]
    assert document["defaults_known"] is True
