"""What the kernel knows of power: INA3221 rails and RAPL package counters, as files of sysfs.

Sources: Linux Documentation/hwmon/ina3221.rst, hwmon/sysfs-interface.rst, power/powercap/powercap.rst.
"""

from dataclasses import dataclass
from pathlib import Path

from models.errors import ModelError

# The input of a whole module, on boards that measure it; the other rails are parts of it.
_WHOLE = "VDD_IN"


class PowerError(ModelError):
    """A rail or a counter cannot be read; the message names the file."""


@dataclass(frozen=True)
class Rail:
    """One labelled channel of an INA3221: a file in millivolts and one in milliamperes."""

    label: str
    voltage: Path
    current: Path

    def watts(self) -> float:
        """Return the power now.

        Raises:
            PowerError: a file is gone, is not readable or holds no number.
        """
        return _number(self.voltage) * _number(self.current) / 1e6


@dataclass(frozen=True)
class Package:
    """The energy counter of one processor package, in microjoules; after ``limit`` comes 0."""

    name: str
    counter: Path
    limit: int

    def microjoules(self) -> int:
        """Return the counter.

        Raises:
            PowerError: as ``Rail.watts``; most kernels let only root read it.
        """
        return _number(self.counter)

    def joules(self, before: int, after: int) -> float:
        """Return the energy between two readings, less than one turn of the counter apart."""
        return (after - before + (self.limit if after < before else 0)) / 1e6


def find_rails(root: Path) -> tuple[Rail, ...]:
    """Return the rails under ``root`` (/sys), none where no INA3221 is; all were read once.

    Channels that have no label or are switched off do not count.

    Raises:
        PowerError: a rail cannot be read: the sum of the others would be too small.
    """
    rails = []
    for chip in sorted(root.glob("bus/i2c/devices/*/hwmon/hwmon*")):
        if not _text(chip / "name").startswith("ina3221"):
            continue
        for channel in (1, 2, 3):
            label = _text(chip / f"in{channel}_label")
            if label and _text(chip / f"in{channel}_enable") != "0":
                files = chip / f"in{channel}_input", chip / f"curr{channel}_input"
                rails.append(Rail(label, *files))
    rails = [rail for rail in rails if rail.label == _WHOLE] or rails
    for rail in rails:
        rail.watts()
    return tuple(rails)


def find_packages(root: Path) -> tuple[Package, ...]:
    """Return the RAPL counters of processor packages under ``root`` (/sys); all were read once.

    Cores, graphics and memory inside a package, and the platform around it, do not count again.

    Raises:
        PowerError: a counter or its limit cannot be read.
    """
    packages = []
    for zone in sorted(root.glob("class/powercap/intel-rapl:*")):
        name = _text(zone / "name")
        if name.startswith("package-"):
            limit = _number(zone / "max_energy_range_uj")
            packages.append(Package(name, zone / "energy_uj", limit))
    for package in packages:
        package.microjoules()
    return tuple(packages)


def _text(path: Path) -> str:
    """Return what a file says, nothing where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as exc:
        raise PowerError(f"{path}: {exc.strerror or exc}") from exc


def _number(path: Path) -> int:
    try:
        return int(path.read_bytes())
    except OSError as exc:
        raise PowerError(f"{path}: {exc.strerror or exc}") from exc
    except ValueError:
        raise PowerError(f"{path}: not a number") from None
