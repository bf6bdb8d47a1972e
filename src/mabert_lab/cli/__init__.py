"""`mabert` with the lab's subcommands and its pictures of the library's results."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mabert import cli
from mabert.files.writing import write_text
from mabert.machine.environment import lacking
from mabert.train.folder import HISTORIES
from mabert_lab.cli.measure import add_bench, add_demo, add_report
from mabert_lab.cli.study import add_study

COMMANDS = (add_demo, add_bench, add_study, add_report)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one subcommand of the library or the lab, see `mabert.cli.main`."""
    return cli.main(arguments, COMMANDS, draw)


def draw(command: str, result: dict[str, Any], folder: Path) -> Iterator[str]:
    """Draws the page of a conversion and the losses of a training, see `mabert.cli.command.Draw`."""
    try:
        if command == "convert":
            from mabert_lab.report.conversion import render

            write_text(folder / "conversion.html", render(result))
            yield f"{folder / 'conversion.html'}: its figures"
        elif command == "pretrain":
            from mabert_lab.report.charts import loss_chart, on_paper, stage_ends

            outcome = result["outcome"]
            chart = loss_chart(outcome["history"], stage_ends(outcome["steps"], result["request"]["stages"]))
            write_text(folder / "loss.svg", on_paper(chart))
        elif command == "finetune":
            from mabert_lab.report.charts import losses_chart, on_paper

            if tables := sorted((folder / HISTORIES).glob("*.csv")):
                write_text(folder / "loss.svg", on_paper(losses_chart(tables)))
    except ModuleNotFoundError as error:
        yield f"no figures: {lacking(error)}"
