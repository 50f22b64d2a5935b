"""``layerstream evaluate``: how right a pack is on a data set, and how it agrees with another."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.arguments import DeviceName, Json, PackPath, Threads, open_named
from cli.printing.output import print_facts, print_json, print_table, warn
from cli.printing.steps import bar
from cli.printing.summary import facts, tables
from models.datasets.cifar10 import read_cifar10
from models.datasets.samples import Dataset, read_folder
from models.datasets.voc import read_voc
from models.packs.pack import Pack, open_pack
from pipeline.evaluating.evaluate import evaluate as run_evaluation
from pipeline.evaluating.results_file import FILE, check_results, save_result

#: Warnings of broken samples that are printed one by one; all are in the result.
_SHOWN = 5


def evaluate(
    context: typer.Context,
    pack: PackPath,
    dataset: Annotated[
        str,
        typer.Option(
            metavar="DIR|cifar10|bccd",
            help="A folder of pictures, or of folders named like their classes; or a data set by its name.",
        ),
    ],
    data: Annotated[
        Path | None,
        typer.Option(
            help="Where the data set is: test_batch.bin or .npz; a VOC folder or zip file."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="bccd: a list in ImageSets/Main, or all. Default: test."),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="Another pack: how often both answer the same.")
    ] = None,
    broken: Annotated[
        Literal["skip", "refuse"], typer.Option(help="What to do with samples that cannot be read.")
    ] = "skip",
    device_name: DeviceName = "cpu",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Answer every picture of a data set, and count. It says accuracy, confusion, precision, agreement.

    The result is kept in the folder of the pack, and `inspect` shows it.
    """
    samples = _dataset(dataset, data, split)
    device = open_named(context, device_name, threads, None, "fp32")
    opened = open_pack(pack, device.target)
    other = open_pack(against, device.target) if against else None
    check_results(opened)
    with bar(f"evaluating {opened.name}") as shown:
        skip = broken == "skip"
        evaluation = run_evaluation(
            opened, samples, device, other, skip_broken=skip, step=shown.step
        )
    result = {
        "model": opened.name,
        **evaluation.as_dict(),
        "data": str(data or dataset),
        "split": (split or _SPLIT) if dataset in _VOC else None,
        "against": other.name if other else None,
    }
    try:
        save_result(opened, result)
    finally:  # the figures are printed even if the file cannot be written
        _print(result, opened, as_json)


def _print(result: dict[str, Any], pack: Pack, as_json: bool) -> None:
    if as_json:
        print_json({**result, "file": str(pack.folder / FILE)})
        return
    for line in result["broken"][:_SHOWN]:
        warn(line)
    print_facts(facts(result))
    for title, columns, rows in tables(result):
        print_table(title, columns, rows)


_VOC = ("bccd", "voc")
_SPLIT = "test"


def _dataset(name: str, data: Path | None, split: str | None) -> Dataset:
    if split is not None and name not in _VOC:
        raise typer.BadParameter(f"{name!r} has no splits: bccd and voc have", param_hint="--split")
    if name not in ("cifar10", *_VOC):
        if data is not None:
            raise typer.BadParameter(
                f"{name!r} is not cifar10, bccd or voc: --data is where one of these is",
                param_hint="--dataset",
            )
        if Path(name).is_file():
            raise typer.BadParameter(
                f"{name} is a file: name its data set, cifar10, bccd or voc, and give it as --data",
                param_hint="--dataset",
            )
        return read_folder(Path(name))
    if data is None:
        raise typer.BadParameter(f"{name} needs --data: where it is", param_hint="--dataset")
    return read_cifar10(data) if name == "cifar10" else read_voc(data, split or _SPLIT)
