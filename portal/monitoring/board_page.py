"""What templates need to draw the board: squares with their classes and sentences, strips, and the legend."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.safestring import SafeString

from portal.monitoring import strips
from portal.monitoring.board import CONDITIONS, HISTORY, Board, ColourBy, Condition, Machine, Square

LEGEND = 12
"""The most people or projects in the legend; the others are counted."""

SIGNS: dict[Condition, str] = {"quarantined": "Q", "unfit": "!"}
"""Stands in a square that cannot be used."""


@dataclass(frozen=True, slots=True)
class DrawnSquare:
    css: str
    code: str
    """Its two letters, empty where no holder is known."""
    sentence: str
    job: int | None
    """The job to which it leads."""


@dataclass(frozen=True, slots=True)
class DrawnMachine:
    machine: Machine
    squares: list[DrawnSquare]
    strip: SafeString


def board_context(board: Board, by: ColourBy) -> dict[str, Any]:
    """Return the context of ``monitoring/_board.html``."""
    until = _next_minute(board.now)  # so that an unchanged strip is drawn in the same way for a minute
    present = board.present_marks(by)
    unusable: tuple[Condition, ...] = ("quarantined", "unfit", "outside")
    return {
        "board": board,
        "by": by,
        "machines": [_drawn(machine, board, until, by) for machine in board.machines],
        "legend": present[:LEGEND],
        "legend_left_out": len(present) - LEGEND,
        "hidden_count": board.hidden(by),
        "hidden_label": board.hidden_as,
        "mine_count": sum(square.holding is not None and square.holding.mine for square in board.squares),
        "idle_count": board.count("idle"),
        "unusable": [(key, CONDITIONS[key], board.count(key)) for key in unusable if board.count(key)],
    }


def _next_minute(moment: datetime) -> datetime:
    return moment.replace(second=0, microsecond=0) + timedelta(minutes=1)


def _drawn(machine: Machine, board: Board, until: datetime, by: ColourBy) -> DrawnMachine:
    state = "" if machine.is_up else machine.state_text
    squares = [_drawn_square(square, machine.name, state, board.now, by) for square in machine.squares]
    return DrawnMachine(machine, squares, strips.draw(machine, until - HISTORY, until, by))


def _drawn_square(square: Square, node: str, state: str, now: datetime, by: ColourBy) -> DrawnSquare:
    holding = square.holding
    mark = holding.mark(by) if holding is not None else None
    css = str(square.condition)
    if mark is not None:
        css += f" hue-{mark.hue} {mark.kind}"
    elif holding is not None:
        css += " hidden-holder"
    if holding is not None and holding.mine:
        css += " mine"
    if mark is not None:
        code = mark.code
    elif holding is not None:
        code = ""
    else:
        code = SIGNS.get(square.condition, str(square.index))
    return DrawnSquare(css, code, square.sentence(node, state, now), holding.job if holding is not None else None)
