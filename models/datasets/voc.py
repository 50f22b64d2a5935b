"""Pictures with boxes as PASCAL VOC writes them, in a folder or a zip file; BCCD is one such set.

Annotations/NAME.xml, JPEGImages/NAME.jpg and ImageSets/Main/SPLIT.txt, wherever below the root.
"""

import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO
from xml.etree import ElementTree

from PIL import Image

from models.datasets.samples import (
    SUFFIXES,
    DataError,
    Dataset,
    Marked,
    Sample,
    SampleError,
    picture,
)

_ANNOTATIONS, _PICTURES, _SPLITS = "Annotations", "JPEGImages", "Main"
# An annotation has a few hundred bytes an object.
_MAX_XML_BYTES = 4 << 20
# Of a picture or a list of names: a zip file may say little and hold much.
_MAX_FILE_BYTES = 64 << 20
# Beside BadZipFile, what comes of entries that are encrypted, cut, damaged or named with other bytes.
_UNZIP_ERRORS = (RuntimeError, EOFError, ValueError, zlib.error)
ALL = "all"


@dataclass(frozen=True)
class _Files:
    """Names of files as paths with slashes, and how to read one."""

    source: Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]


def read_voc(source: Path, split: str = "test") -> Dataset:
    """Return the pictures of ``split``, a list of names in ImageSets/Main, or "all" that have annotations.

    Raises:
        DataError: the source is no such folder or zip file, or has no such split.
    """
    files = _files(source)
    marks = _by_stem(files, _ANNOTATIONS, {".xml"})
    pictures = _by_stem(files, _PICTURES, SUFFIXES)
    splits = _by_stem(files, _SPLITS, {".txt"})
    if not marks:
        raise DataError(f"{source}: no folder {_ANNOTATIONS} with .xml files in it")
    if split != ALL and split not in splits:
        known = ", ".join((*splits, ALL))
        raise DataError(f"{source}: no split {split!r}; it has {known}")
    chosen = list(marks) if split == ALL else _listed(files, splits[split])
    if not chosen:
        raise DataError(f"{source}: split {split!r} lists no pictures")

    def samples() -> Iterator[Sample]:
        for name in chosen:
            yield Sample(
                name,
                partial(_picture, files, pictures, name),
                marks=partial(_marks, files, marks, name),
            )

    return Dataset(source.stem, len(chosen), samples, marked=True)


def _files(source: Path) -> _Files:
    if source.is_dir():
        paths = (path for path in sorted(source.rglob("*")) if path.is_file())
        names = (path.relative_to(source).as_posix() for path in paths)
        return _Files(source, tuple(names), lambda name: _start((source / name).open("rb")))
    try:
        archive = zipfile.ZipFile(source)
    except FileNotFoundError as exc:
        raise DataError(f"{source}: no such folder or zip file") from exc
    except (OSError, zipfile.BadZipFile, *_UNZIP_ERRORS) as exc:
        raise DataError(f"{source}: neither a folder nor a zip file: {exc}") from exc
    return _Files(source, tuple(archive.namelist()), partial(_unzipped, archive))


def _unzipped(archive: zipfile.ZipFile, name: str) -> bytes:
    # The others open a whole block at once, whatever it holds.
    if archive.getinfo(name).compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise zipfile.BadZipFile("neither stored nor deflated")
    return _start(archive.open(name))


def _start(file: IO[bytes]) -> bytes:
    """Return the content of ``file``, no more of it than shows that it is too long."""
    with file:
        return file.read(_MAX_FILE_BYTES + 1)


def _by_stem(files: _Files, folder: str, suffixes: set[str] | frozenset[str]) -> dict[str, str]:
    """Return the files in a folder of that name by their names without ending."""
    paths = [(PurePosixPath(name), name) for name in files.names]
    return {
        path.stem: name
        for path, name in sorted(paths)
        if path.parent.name == folder and path.suffix.lower() in suffixes
    }


def _listed(files: _Files, name: str) -> list[str]:
    lines = _bytes(files, name).decode("utf-8-sig", "replace").splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def _bytes(files: _Files, name: str) -> bytes:
    try:
        data = files.read(name)
    except (OSError, KeyError, zipfile.BadZipFile, *_UNZIP_ERRORS) as exc:
        raise SampleError(f"{files.source}: {name}: cannot be read: {exc}") from exc
    if len(data) > _MAX_FILE_BYTES:
        raise SampleError(f"{files.source}: {name}: more than {_MAX_FILE_BYTES} bytes")
    return data


def _picture(files: _Files, pictures: dict[str, str], name: str) -> Image.Image:
    if name not in pictures:
        raise SampleError(f"{files.source}: no picture {name} in {_PICTURES}")
    return picture(f"{files.source}: {pictures[name]}", _bytes(files, pictures[name]))


def _marks(files: _Files, marks: dict[str, str], name: str) -> tuple[Marked, ...]:
    if name not in marks:
        raise SampleError(f"{files.source}: no annotation {name}.xml in {_ANNOTATIONS}")
    return parse_annotation(f"{files.source}: {marks[name]}", _bytes(files, marks[name]))


class _Untyped(ElementTree.TreeBuilder):
    """Takes no document type, and so no entities, in whatever characters they are written."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def doctype(self, *_: str | None) -> None:
        raise SampleError(f"{self._name}: an annotation needs no document type, and none is taken")


def parse_annotation(name: str, text: bytes) -> tuple[Marked, ...]:
    """Return the objects of an annotation, edges in pixels counted from 0 (VOC counts from 1).

    Raises:
        SampleError: it is no XML of this kind, or a box has no area; it is called ``name``.
    """
    if len(text) > _MAX_XML_BYTES:
        raise SampleError(f"{name}: {len(text)} bytes; an annotation has at most {_MAX_XML_BYTES}")
    parser = ElementTree.XMLParser(target=_Untyped(name))  # noqa: S314  takes no entities
    try:
        parser.feed(text)
        root: ElementTree.Element = parser.close()
    except (ElementTree.ParseError, ValueError, LookupError) as exc:
        raise SampleError(f"{name}: not XML: {exc}") from exc
    return tuple(_object(name, number, item) for number, item in enumerate(root.iter("object")))


def _object(name: str, number: int, item: ElementTree.Element) -> Marked:
    label = (item.findtext("name") or "").strip()
    texts = [item.findtext(f"bndbox/{edge}") or "" for edge in ("xmin", "ymin", "xmax", "ymax")]
    try:
        left, top, right, bottom = (float(text) for text in texts)
    except ValueError as exc:
        raise SampleError(f"{name}: object {number}: bndbox: {exc}") from exc
    # Pixels are counted from 1, and the last one belongs to the box.
    edges = (left - 1, top - 1, right, bottom)
    if not label or not (-1e6 < left <= right < 1e6 and -1e6 < top <= bottom < 1e6):
        raise SampleError(f"{name}: object {number}: {label or 'no name'} {texts} is no box")
    return Marked(label, edges, (item.findtext("difficult") or "0").strip() == "1")
