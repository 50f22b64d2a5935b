"""Plans as tables, and as JSON: ``plan --explain``."""

from typing import TYPE_CHECKING, Any

from cli.printing.output import print_table

if TYPE_CHECKING:
    from pipeline.planning.plan import AnyPlan
    from pipeline.program.program import Program


def print_plan_tables(program: "Program", plan: "AnyPlan") -> None:
    """Print what ``plan`` runs, reads and holds: of each partition where there are several."""
    from pipeline.planning import tables
    from pipeline.planning.document import plan_checksum
    from pipeline.program.partitions import Cuts

    for partition, single in zip(Cuts(program).parts(plan.cuts), plan.partitions, strict=True):
        pieces = f", pieces {partition.own.start} to {partition.own.stop - 1}"
        name = f"{program.name}{pieces if plan.cuts else ''}"
        launches = tables.launch_rows(partition, single)
        print_table(f"{name}: launches", tables.LAUNCH_COLUMNS, launches)
        if single.reads:
            print_table(f"{name}: reads", tables.READ_COLUMNS, tables.read_rows(single))
        title = f"{name}: memory of plan {plan_checksum(single)}"
        print_table(title, tables.BUFFER_COLUMNS, tables.buffer_rows(single))


def plan_documents(plan: "AnyPlan") -> list[dict[str, Any]]:
    """Return all that ``plan`` does: of each partition."""
    from pipeline.planning.document import plan_checksum, plan_document

    return [
        {"checksum": plan_checksum(single), **plan_document(single)} for single in plan.partitions
    ]
