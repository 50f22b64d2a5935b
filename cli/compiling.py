"""How ``compile`` makes a pack: a step after the other, each but the last in a process of its own.

What one has imported and allocated is gone when the next begins, so this process imports nothing that only
one of them needs. Without a check there is one step, in this process.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from models.forks import Listener, Result, in_fork
from models.packs.building import Unfinished, building, check_destination
from models.packs.names import Store, loses_bits
from models.progress import Progress
from models.runtime.heap import is_claimed, kept_imports
from pipeline.checking import Depth, threads_of
from pipeline.checking.comparison import ComparisonRules

if TYPE_CHECKING:
    from models.compiler import CompileOptions
    from models.compiler.passes.explain import PassChange
    from models.compiler.passes.run import Observer
    from models.datasets.samples import Dataset
    from models.packs.target import Target
    from pipeline.checking.comparison import ComparisonRules

# Pictures of --calibrate on which is measured what --store costs.
_MEASURED = 8


@dataclass(frozen=True)
class CompileRequest:
    """What a user asks for: ``output``/``version`` of the file ``source``.

    ``quantised``: as 8-bit integers. ``calibrate``: the folder of pictures, for that or for what ``store``
    costs. ``check``: None: without. ``recipes``: files by the names of their options. ``options``: fields
    of ``CompileOptions`` that are as they were given.
    """

    source: Path
    output: Path
    version: int
    force: bool
    target: str
    store: Store
    quantised: bool
    calibrate: Path | None
    check: Depth | None
    recipes: Mapping[str, Path]
    options: Mapping[str, Any]
    explain: bool = False
    verify: bool = False
    find_fault: bool = False
    print_passes: Path | None = None

    @property
    def pack(self) -> Path:
        """Where the pack will be."""
        return self.output / str(self.version)


class _Written(NamedTuple):
    """A shape of a pack that was written: what opens it, its source as a file, how both are compared."""

    pack: Path
    reference: Path
    comparison: ComparisonRules


def compile_request(
    request: CompileRequest,
    progress: Progress,
    warn: Callable[[str], None],
    changed: "Callable[[PassChange], None]",
) -> Path:
    """Make the pack of ``request`` and return its folder.

    ``progress`` is called at each step, ``warn`` with what a user should know, ``changed`` with what each
    pass changed, if that is to be explained.

    Raises:
        ModelError: the source cannot be used, or not be compiled. MemoryError: the system has too little.
        Whatever observers of passes raise.
    """
    check_destination(request.output, request.version)
    with building(request.pack, request.force, warn) as unfinished:
        write = partial(_write, request, unfinished)
        if request.check is None:
            write(progress, warn, changed)
        else:
            # In the process of another program libraries have threads, which no fork has.
            written = (in_fork if is_claimed() else _in_this_process)(
                write, progress, warn, changed
            )
            assert written is not None
            notes = [_notes(request, shape, request.check, progress) for shape in written]
            for note in dict.fromkeys(itertools.chain.from_iterable(notes)):
                warn(f"{request.source}: {note}")
    return unfinished.destination


def _notes(
    request: CompileRequest,
    written: _Written,
    depth: Depth,
    progress: Progress,
) -> Iterable[str]:
    """Check the pack with each number of threads, and return what a user should know, once each."""
    check = partial(_check, request, written)
    first, *others = threads_of(depth)
    if is_claimed():
        notes = [note for count in others for note in in_fork(partial(check, count), progress)]
        notes += check(first, progress)  # in this process, which has use for what is imported
    else:
        notes = [note for count in (first, *others) for note in check(count, progress)]
    return dict.fromkeys(notes)


def _in_this_process(work: Callable[..., Result], *listeners: Listener) -> Result:
    return work(*listeners)


def _write(
    request: CompileRequest,
    unfinished: Unfinished,
    progress: Progress,
    warn: Callable[[str], None],
    changed: "Callable[[PassChange], None]",
) -> list[_Written] | None:
    """Write the files of the pack; return what its check needs of each shape, if there is one to come."""
    with kept_imports():
        from models.compiler.compile import reference_of, shape_of, write_pack
        from models.compiler.passes.explain import Explaining
        from models.packs.pack import read_pack
        from models.packs.target import named_target
        from pipeline.checking.tolerance import comparison_of

    target = named_target(request.target)
    changes = Explaining() if request.explain else None
    observers = (*((changes,) if changes else ()), *_observers(request))
    options = _options(request, target, warn, observers)
    sources = write_pack(request.source, request.pack, unfinished, options, progress)
    for change in changes.changes if changes else ():
        changed(change)
    if request.check is None:
        return None
    manifest = read_pack(unfinished.pack).manifest
    written = []
    for source in sources:
        reference = reference_of(source, unfinished)
        comparison = comparison_of(reference, manifest.target, manifest.store)
        written.append(_Written(shape_of(source, unfinished), reference, comparison))
    return written


def _options(
    request: CompileRequest,
    target: "Target",
    warn: Callable[[str], None],
    observers: "tuple[Observer, ...]",
) -> "CompileOptions":
    from models.compiler.compile import CompileOptions
    from pipeline.devices.find import device_measure

    pictures = _pictures(request)
    if pictures:
        pictures.check_pictures()
    return CompileOptions(
        target=target,
        measure=device_measure(target),
        calibrate=pictures.pictures if pictures and request.quantised else None,
        warn=warn,
        store=request.store,
        observers=observers,
        **_recipes(request.recipes),
        **request.options,
    )


def _recipes(files: Mapping[str, Path]) -> dict[str, Any]:
    """Return what is in ``files``, by their options."""
    from models.compiler.writing.hub_config import read_config
    from models.compiler.writing.text_config import read_text_config
    from models.detection.recipe import read_detection
    from models.embedding import read_embedding
    from models.images.preprocess import read_labels, read_preprocess
    from models.segmentation import read_segmentation

    readers: Mapping[str, Callable[[Path], Any]] = {
        "labels": read_labels,
        "preprocess": read_preprocess,
        "detection": read_detection,
        "segmentation": read_segmentation,
        "embedding": read_embedding,
    }
    recipes = {name: read(files[name]) for name, read in readers.items() if name in files}
    configs = (files[name] for name in ("image_config", "config") if name in files)
    text = read_text_config(files["tokenizer"]) if "tokenizer" in files else None
    return {**recipes, "configs": tuple(map(read_config, configs)), "text": text}


def _observers(request: CompileRequest) -> "Iterator[Observer]":
    """Yield what looks on while passes run."""
    from models.compiler.passes.verify import Verifying
    from models.compiler.passes.view import Printing
    from pipeline.checking.checker import fault_finder

    if request.verify:
        yield Verifying()
    if request.find_fault:
        yield fault_finder()
    if request.print_passes is not None:
        yield Printing(request.print_passes)


def _pictures(request: CompileRequest) -> "Dataset | None":
    from models.datasets.samples import read_folder

    return read_folder(request.calibrate) if request.calibrate else None


def _check(
    request: CompileRequest,
    written: _Written,
    threads: int | None,
    progress: Progress,
) -> list[str]:
    """Compare the pack with its source, with so many threads; None: all."""
    with kept_imports():
        from pipeline.checking.checker import check_with_threads
        from server.memory.process_memory import spare_bytes

    assert request.check is not None
    pictures = _pictures(request) if loses_bits(request.store) else None
    return check_with_threads(
        *(written.pack, written.reference, request.source),
        *(written.comparison, threads, progress),
        depth=request.check,
        pictures=partial(pictures.pictures, _MEASURED) if pictures else None,
        free=spare_bytes,
    )
