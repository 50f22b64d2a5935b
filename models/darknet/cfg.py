"""Texts of cfg files to sections, and what a section may say: its options, as checked numbers.

Names are those of AlexeyAB's parser (``parse_network_cfg`` and the functions that it calls).
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from models.errors import ModelError


class DarknetError(ModelError):
    """A cfg or .weights file is not one of Darknet's, or uses what is not supported here."""


def _short(text: str) -> str:
    """Return ``text`` of a file as messages quote it."""
    return text if len(text) <= 40 else text[:40] + "..."


@dataclass(frozen=True)
class Section:
    """``kind`` without brackets; options as texts; lines count from 1, 0 where there is no file."""

    kind: str
    options: Mapping[str, str]
    line: int = 0
    option_lines: Mapping[str, int] = field(default_factory=dict)


# Which options each section of a cfg may have: every option of Darknet is in one of these tables.

#: Other names of sections.
ALIASES = {
    "network": "net",
    "conv": "convolutional",
    "max": "maxpool",
    "avg": "avgpool",
    "conn": "connected",
    "soft": "softmax",
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Options that decide what a layer computes or how its output is read.
_USED = {
    "net": _words("width height channels"),
    "convolutional": _words(
        "filters size stride stride_x stride_y pad padding dilation groups batch_normalize activation "
        "share_index"
    ),
    "maxpool": _words("size stride stride_x stride_y padding maxpool_depth out_channels"),
    "avgpool": _words(""),
    "upsample": _words("stride scale"),
    "reorg": _words("stride"),
    "crop": _words("crop_width crop_height noadjust"),
    "route": _words("layers groups group_id"),
    "route_lhalf": _words("layers"),
    "shortcut": _words("from activation weights_type weights_normalization"),
    "scale_channels": _words("from scale_wh activation"),
    "sam": _words("from activation"),
    "connected": _words("output batch_normalize activation"),
    "softmax": _words("groups temperature"),
    "dropout": _words(""),
    "cost": _words(""),
    "yolo": _words("mask anchors num classes scale_x_y new_coords nms_kind beta_nms"),
    "region": _words("anchors num classes softmax"),
}

_DETECTOR_TRAINING = _words(
    "jitter resize random max max_delta ignore_thresh truth_thresh iou_thresh iou_thresh_kind "
    "iou_loss iou_normalizer obj_normalizer cls_normalizer delta_normalizer objectness_smooth "
    "label_smooth_eps counters_per_class focal_loss show_details track_history_size sim_thresh "
    "dets_for_track dets_for_show track_ciou_norm"
)

# Training, augmentation, and how Darknet itself runs.
_IGNORED = {
    "net": _words(
        "batch subdivisions max_batches learning_rate learning_rate_min momentum decay policy burn_in "
        "power step steps scale scales seq_scales gamma sgdr_cycle sgdr_mult adam B1 B2 eps angle "
        "aspect saturation exposure hue flip blur gaussian_noise max_crop min_crop max_ratio min_ratio "
        "center mosaic mosaic_bound mixup cutmix letter_box label_smooth_eps resize_step "
        "augment_speed sequential_subdivisions try_fix_nan loss_scale dynamic_minibatch "
        "optimized_memory workspace_size_limit_MB adversarial_lr attention max_chart_loss "
        "num_sigmas_reject_badlabels badlabels_rejection_percentage weights_reject_freq "
        "equidistant_point ema_alpha use_cuda_graph contrastive contrastive_jit_flip "
        "contrastive_color unsupervised track show_receptive_field"
    ),
    "convolutional": _words("grad_centr reverse angle stream wait_stream assisted_excitation"),
    "maxpool": _words("maxpool_zero_nonmax"),
    "crop": _words("flip angle saturation exposure shift"),
    "route": _words("stream wait_stream"),
    "softmax": _words("noloss"),
    "dropout": _words("probability dropblock dropblock_size_rel dropblock_size_abs"),
    "cost": _words("type scale ratio"),
    "yolo": _DETECTOR_TRAINING,
    "region": _DETECTOR_TRAINING
    | _words(
        "bias_match rescore thresh classfix absolute log sqrt "
        "coord_scale object_scale noobject_scale mask_scale class_scale"
    ),
}

# Options that every section but [net] may have.
_IGNORED_ANYWHERE = _words(
    "stopbackward train_only_bn dont_update burnin_update onlyforward learning_rate smooth clip"
)

#: Options that would change what a layer computes, and the one value at which they do not.
NEUTRAL = {
    "net": {"time_steps": "1"},
    "convolutional": dict.fromkeys(
        _words(
            "antialiasing cbn binary xnor bin_output sway rotate stretch stretch_sway flipped dot "
            "coordconv"
        ),
        "0",
    ),
    "maxpool": {"antialiasing": "0"},
    "reorg": {"reverse": "0"},
    "softmax": {"spatial": "0"},
    "region": {"coords": "4", "background": "0"},
}

# What would change the weights file.
_NEUTRAL_ANYWHERE = {"dontload": "0", "dontloadscales": "0"}


def _canonical(kind: str) -> str:
    """Return the usual name of a section."""
    return ALIASES.get(kind, kind)


def _is_ignored(kind: str, option: str) -> bool:
    """Return whether ``option`` has no part in inference."""
    kind = _canonical(kind)
    anywhere = kind != "net" and option in _IGNORED_ANYWHERE
    return anywhere or option in _IGNORED.get(kind, ())


def _neutral(kind: str, option: str) -> str | None:
    """Return the one value that ``option`` may have, None where others are fine or it is unknown."""
    value = NEUTRAL.get(kind, {}).get(option)
    return _NEUTRAL_ANYWHERE.get(option) if value is None and kind != "net" else value


# The text of a cfg file: sections of options, as Darknet reads them.
#
# A line loses all its blanks; one that then starts with # or ; is a comment. The first of two equal
# options counts. What Darknet reads without complaint but cannot mean is an error here.

# The longest cfg of Darknet's own has 25 KB.
MAX_BYTES = 1 << 20

_BLANKS = str.maketrans("", "", " \t\r")


def read_cfg(path: Path) -> list[Section]:
    """Return the sections of the file; the first one is [net].

    Raises:
        DarknetError: the file is missing, too long, no text, or what `parse_cfg` refuses.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as exc:
        raise DarknetError(f"{path}: {exc.strerror or exc}") from exc
    if len(data) > MAX_BYTES:
        raise DarknetError(f"{path}: longer than {MAX_BYTES} bytes, which no cfg is")
    if b"\0" in data:
        raise DarknetError(f"{path}: not a text file")
    # Comments come in any encoding; what Darknet understands is ASCII.
    return parse_cfg(data.decode("utf-8-sig", "replace"), str(path))


def parse_cfg(text: str, where: str) -> list[Section]:
    """Return the sections of ``text``; the first one is [net]. Errors start with ``where``.

    Raises:
        DarknetError: a line is neither section, option nor comment, an option is given twice
            with different values, or the first section is not [net].
    """
    sections: list[Section] = []
    options: dict[str, str] = {}
    lines: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        bare = line.translate(_BLANKS)
        if not bare or bare[0] in "#;":
            continue
        at = f"{where}: line {number}"
        if bare[0] == "[":
            options, lines = {}, {}
            sections.append(Section(_kind(bare, at), options, number, lines))
            continue
        key, value = _option(bare, at)
        if not sections:
            raise DarknetError(f"{at}: option {key} before the first section")
        if key in options:
            _check_repeated(sections[-1], key, value, at)
        else:
            options[key], lines[key] = value, number
    if not sections:
        raise DarknetError(f"{where}: no sections in it")
    if _canonical(sections[0].kind) != "net":
        raise DarknetError(
            f"{where}: line {sections[0].line}: the first section is [{sections[0].kind}], not [net]"
        )
    return sections


def _kind(line: str, at: str) -> str:
    name, bracket, rest = line[1:].partition("]")
    if not bracket or not name or (rest and rest[0] not in "#;"):
        raise DarknetError(f"{at}: {_short(line)!r} is not a section such as [convolutional]")
    return name


def _option(line: str, at: str) -> tuple[str, str]:
    key, equals, value = line.partition("=")
    if not equals or not key:
        raise DarknetError(f"{at}: {_short(line)!r} is neither a section nor an option")
    # Darknet's atoi and atof stop at a comment behind a number, too.
    for mark in "#;":
        value = value.partition(mark)[0]
    return key, value


def _check_repeated(section: Section, key: str, value: str, at: str) -> None:
    if section.options[key] == value or _is_ignored(section.kind, key):
        return
    raise DarknetError(
        f"{at}: [{_short(section.kind)}] {_short(key)}={_short(value)} contradicts {_short(key)}="
        f"{_short(section.options[key])}"
        f" in line {section.option_lines[key]}"
    )


def format_cfg(sections: Iterable[Section]) -> str:
    """Return ``sections`` as the text of a cfg, without comments and blanks."""
    return "\n".join(
        "".join([f"[{section.kind}]\n", *(f"{k}={v}\n" for k, v in section.options.items())])
        for section in sections
    )


# The options of one section, as checked numbers; every error names the section and its line.

# Darknet's numbers are C's int.
_MOST = (1 << 31) - 1

_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class SectionOptions:
    """``section`` is number ``index`` after [net], -1 is [net] itself; errors start with ``where``."""

    section: Section
    where: str
    index: int

    @property
    def kind(self) -> str:
        return _canonical(self.section.kind)

    def fail(self, message: str, option: str | None = None) -> NoReturn:
        """Raise the error about this section, at the line of ``option`` if that is given."""
        line = self.section.option_lines.get(option or "", self.section.line)
        number = f"layer {self.index} " if self.index >= 0 else ""
        at = f"line {line}: " if line else ""
        raise DarknetError(f"{self.where}: {at}{number}[{_short(self.section.kind)}]: {message}")

    def check_names(self) -> None:
        """Refuse sections and options that Darknet does not have, or that are not supported.

        Raises:
            DarknetError: the section or an option of it.
        """
        if self.kind not in _USED:
            self.fail(
                "sections of this kind are not supported; convert the network to ONNX elsewhere"
            )
        for option, value in self.section.options.items():
            only = _neutral(self.kind, option)
            if only is not None:
                if value not in (only, f"{only}.0"):
                    self.fail(f"{option}={_short(value)} is not supported, only {only} is", option)
            elif option not in _USED[self.kind] and not _is_ignored(self.kind, option):
                self.fail(f"unknown option {_short(option)}", option)

    def has(self, option: str) -> bool:
        return option in self.section.options

    def text(self, option: str, default: str | None = None) -> str:
        """Return the text of ``option``; without ``default`` it must be there."""
        value = self.section.options.get(option, default)
        if value is None:
            self.fail(f"option {option} is missing")
        return value

    def choice(self, option: str, default: str, values: tuple[str, ...]) -> str:
        """Return one of ``values``."""
        value = self.text(option, default)
        if value not in values:
            self.fail(f"{option}={_short(value)} is none of {', '.join(values)}", option)
        return value

    def integer(
        self, option: str, default: int | None = None, least: int = 1, most: int = _MOST
    ) -> int:
        """Return an integer from ``least`` to ``most``."""
        text = self.text(option, None if default is None else str(default))
        value = self._integer(option, text)
        if not least <= value <= most:
            self.fail(f"{option}={value} is not from {least} to {most}", option)
        return value

    def flag(self, option: str) -> bool:
        """Return whether an integer, 0 by default, is not 0."""
        return self.integer(option, 0, least=-_MOST) != 0

    def number(self, option: str, default: float) -> float:
        """Return a positive number."""
        text = self.section.options.get(option)
        value = default if text is None else self._number(option, text)
        if value <= 0:
            self.fail(f"{option}={_short(text or '')} is not above 0", option)
        return value

    def integers(self, option: str) -> tuple[int, ...]:
        """Return a list of integers, separated by commas."""
        return tuple(self._integer(option, part) for part in self.text(option).split(","))

    def numbers(self, option: str) -> tuple[float, ...]:
        """Return a list of numbers, separated by commas."""
        return tuple(self._number(option, part) for part in self.text(option).split(","))

    def _integer(self, option: str, text: str) -> int:
        text = text.strip()
        if len(text) > 40 or not _INTEGER.fullmatch(text) or abs(int(text)) > _MOST:
            self.fail(f"{option}: {_short(text)!r} is not an integer", option)
        return int(text)

    def _number(self, option: str, text: str) -> float:
        text = text.strip()
        if len(text) > 40 or not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
            self.fail(f"{option}: {_short(text)!r} is not a number", option)
        return float(text)
