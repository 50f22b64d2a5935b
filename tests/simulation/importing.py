"""The project's modules, imported anew with simulated threads and clocks in place of the library's."""

import importlib
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from tests.simulation.instrumenting import Finder, install
from tests.simulation.planting import Planted
from tests.simulation.threads import REAL, modules

#: Packages of the project that run in a service.
PACKAGES = ("layerstream", "loader", "models", "pipeline", "server")
# What is not part of a service on the CPU, or belongs to a process of its own.
_EXCLUDED = (
    "loader.native.compiling",
    "pipeline.devices.cuda",
    "pipeline.peers",
    "pipeline.benchmark",
    "server.repository.compiling_child",
    "server.grpc",
)
_REACHED = ("server.app", "server.service", "server.transport.server", "server.protocol.infer")


def import_libraries() -> None:
    """Import the libraries of a service, with what is real."""
    for name in _REACHED:
        importlib.import_module(name)


def import_project(planted: Sequence[Planted] = ()) -> None:
    """Import what a service needs, with the faults ``planted``."""
    import_libraries()
    _forget()
    install(Finder(PACKAGES, planted))
    replaced = modules()
    real = {name: sys.modules[name] for name in replaced}
    sys.modules.update(replaced)
    try:
        for package in PACKAGES:
            _import_all(package)
    finally:
        sys.modules.update(real)
    _stand_still()


def _forget() -> None:
    for name in list(sys.modules):
        if name.partition(".")[0] in PACKAGES:
            del sys.modules[name]


def _import_all(package: str) -> None:
    """Import a package with its modules: what is imported at its first use would have real clocks."""
    root = importlib.import_module(package)
    for module in pkgutil.walk_packages(root.__path__, f"{package}."):
        name = module.name
        if not name.startswith(_EXCLUDED) and not name.endswith("__main__"):
            importlib.import_module(name)


def _stand_still() -> None:
    """Leave the one thread of the system where it is: cores and priorities are not simulated."""
    for module in project_modules():
        for name, value in (("spread", None), ("hasten", "usual"), ("wake_soon", False)):
            if hasattr(module, name):
                setattr(module, name, lambda *args, _value=value: _value)


def project_modules() -> list[ModuleType]:
    """Return the modules of the project that are imported."""
    return [
        module for name, module in list(sys.modules.items()) if name.partition(".")[0] in PACKAGES
    ]


def unsimulated() -> list[str]:
    """Return where modules of the project hold what should have been replaced."""
    real = {id(value): name for name, value in REAL.items()}
    return [
        f"{module.__name__}.{name}: {real[id(value)]}"
        for module in project_modules()
        for name, value in vars(module).items()
        if id(value) in real
    ]
