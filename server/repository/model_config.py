"""config.pbtxt of a model, as Triton has it: the few fields that mean something here, and which do not.

Tensors, instances and backends, which Triton reads there, are decided by the pack. So the other fields are
ignored, and the log names them, so that no user waits for their effect.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models.errors import ModelError
from models.sizes import parse_size
from server.repository.text_format import At, Fields, TextFormatError, parse, text, whole


@dataclass(frozen=True)
class Policy:
    """Which versions are served: those ``named``, or where none are the ``latest`` ones (None: all)."""

    latest: int | None = 1
    named: frozenset[int] = frozenset()

    def wanted(self, there: Sequence[int]) -> list[int]:
        """Return the numbers of those ``there`` that are served, lowest first."""
        if self.named:
            return sorted(self.named.intersection(there))
        return sorted(there)[-(self.latest or 0) :]

    @property
    def is_of_several(self) -> bool:
        """Whether a model may ever have more than one version at once."""
        return len(self.named) > 1 if self.named else self.latest != 1


FILE = "config.pbtxt"
_MOST_BYTES = 1 << 20
_MOST_INT32 = (1 << 31) - 1
_MOST_INT64 = (1 << 63) - 1


class ModelConfigError(ModelError):
    """A config.pbtxt cannot be used; the message has file, line and field."""


@dataclass(frozen=True)
class ConfiguredBatching:
    """How waiting requests share a sweep. ``preferred_sizes``: at these it waits for no more of them."""

    preferred_sizes: tuple[int, ...] = ()
    most_queue_seconds: float = 0.0
    default_timeout_seconds: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    """What a config.pbtxt says. ``batching``: None where it has no dynamic_batching.

    ``label_files``: by output, relative to the model's folder. ``policy_line``: the line of ``policy``.
    ``ignored``: the line of each field that has no meaning here. ``pin``: as the setting has it of a model;
    None: it is not pinned.
    """

    max_batch_size: int | None = None
    batching: ConfiguredBatching | None = None
    label_files: Mapping[str, str] = field(default_factory=dict)
    policy: Policy = Policy()
    ignored: Mapping[str, int] = field(default_factory=dict)
    policy_line: int = 1
    pin: int | None = None

    @property
    def default_timeout_seconds(self) -> float | None:
        """The timeout of requests that have none of their own; None: the server's."""
        return None if self.batching is None else self.batching.default_timeout_seconds


def read_model_config(folder: Path) -> ModelConfig:
    """Return the config.pbtxt in ``folder``, a model's; without that file one with all defaults.

    Raises:
        ModelConfigError: it cannot be read, or is wrong; the message has file and line.
    """
    file = folder / FILE
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return ModelConfig()
    except OSError as exc:
        raise ModelConfigError(f"{file}: {exc.strerror or exc}") from exc
    if len(data) > _MOST_BYTES:
        raise ModelConfigError(f"{file}: larger than {_MOST_BYTES} bytes")
    try:
        return model_config(data.decode(), folder.name)
    except UnicodeDecodeError as exc:
        line = data.count(b"\n", 0, exc.start) + 1
        raise ModelConfigError(f"{file}:{line}: not UTF-8") from exc
    except TextFormatError as exc:
        raise ModelConfigError(f"{file}:{exc.line}: {exc}") from exc


def model_config(written: str, name: str) -> ModelConfig:
    """Return the configuration of the model ``name`` that the text ``written`` is.

    Raises:
        TextFormatError: it is not in the text format, a field has the wrong type or is there twice, or two
            contradict each other.
    """
    ignored: dict[str, int] = {}
    fields = Fields(parse(written), "", ignored)
    _check_name(fields, name)
    config = ModelConfig(
        max_batch_size=fields.one("max_batch_size", whole(0, _MOST_INT32)),
        batching=fields.one("dynamic_batching", _batching),
        label_files=_label_files(fields),
        policy=fields.one("version_policy", _policy) or Policy(),
        pin=_pin(fields),
        ignored=ignored,
        policy_line=fields.line("version_policy"),
    )
    _check_batching(fields, config)
    fields.ignore_rest()
    return config


def _check_name(fields: Fields, name: str) -> None:
    configured = fields.one("name", text)
    if configured not in {None, name}:
        shown = repr(configured if len(configured or "") <= 60 else f"{(configured or '')[:60]}...")
        raise TextFormatError(
            fields.line("name"), f"name: {shown}, the model's folder is called {name!r}"
        )


def _batching(at: At) -> ConfiguredBatching:
    fields = at.fields()
    sizes = fields.each("preferred_batch_size", whole(1, _MOST_INT32))
    delay = fields.one("max_queue_delay_microseconds", whole(0, _MOST_INT64))
    timeout = fields.one("default_queue_policy", _timeout)
    fields.ignore_rest()
    return ConfiguredBatching(tuple(sizes), (delay or 0) / 1e6, timeout / 1e6 if timeout else None)


def _timeout(at: At) -> int | None:
    """Return the default timeout in microseconds; None or 0: the server's."""
    fields = at.fields()
    microseconds = fields.one("default_timeout_microseconds", whole(0, _MOST_INT64))
    fields.ignore_rest()
    return microseconds


def _check_batching(fields: Fields, config: ModelConfig) -> None:
    """Refuse settings of batches that contradict each other."""
    if config.batching is None:
        return
    line = fields.line("dynamic_batching")
    if other := fields.all("sequence_batching"):
        raise TextFormatError(
            max(line, other[0].line), "dynamic_batching and sequence_batching: only one can be"
        )
    sizes, most = config.batching.preferred_sizes, config.max_batch_size
    if not sizes:
        return
    if not most:
        raise TextFormatError(
            line, "dynamic_batching.preferred_batch_size: max_batch_size is 0, nothing is batched"
        )
    if max(sizes) > most:
        raise TextFormatError(
            line,
            f"dynamic_batching.preferred_batch_size: {max(sizes)} is above max_batch_size {most}",
        )


def _policy(at: At) -> Policy:
    fields = at.fields()
    ways: dict[str, Callable[[At], Policy]] = {
        "latest": _latest,
        "all": _every,
        "specific": _specific,
    }
    policies = [way for name, read in ways.items() if (way := fields.one(name, read)) is not None]
    fields.ignore_rest()
    if len(policies) != 1:
        raise at.fault(f"expected one of {', '.join(ways)}, found {len(policies)}")
    return policies[0]


def _latest(at: At) -> Policy:
    fields = at.fields()
    count = fields.one("num_versions", whole(1, _MOST_INT32))
    fields.ignore_rest()
    return Policy(count or 1)


def _every(at: At) -> Policy:
    at.fields().ignore_rest()
    return Policy(None)


def _specific(at: At) -> Policy:
    fields = at.fields()
    numbers = fields.each("versions", whole(1, _MOST_INT64))
    fields.ignore_rest()
    if not numbers:
        raise at.fault("names no versions")
    return Policy(named=frozenset(numbers))


def _pin(fields: Fields) -> int | None:
    """Return the size in the parameter ``pin``: 0 for an empty one; None: there is none."""
    pins = []
    for parameter in fields.each("parameters", lambda field: field):
        inside = parameter.fields()
        if inside.one("key", text) != "pin":
            fields.ignore(parameter)
            continue
        value = inside.one("value", lambda field: field.fields().one("string_value", text))
        try:
            pins.append(parse_size(value) if value else 0)
        except ValueError as exc:
            raise parameter.fault(f"pin: {exc}") from exc
    if len(pins) > 1:
        raise TextFormatError(fields.line("parameters"), "parameters: pin is given twice")
    return next(iter(pins), None)


def _label_files(fields: Fields) -> dict[str, str]:
    """Return the files of labels by output; inside the model's folder."""
    files: dict[str, str] = {}
    for at in fields.each("output", lambda at: at):
        output = at.fields()
        name, file = output.one("name", text), output.one("label_filename", text)
        output.ignore_rest()
        if not file:
            continue
        if not name:
            raise at.fault("label_filename without the name of an output")
        if "\0" in file or Path(file).is_absolute() or ".." in Path(file).parts:
            raise at.fault("label_filename: must lie inside the model's folder")
        if files.setdefault(name, file) != file:
            raise at.fault("label_filename: two files for one output")
    return files
