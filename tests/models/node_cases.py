"""The cases that the package onnx has of its operators: a model of one node or few, inputs, and answers."""

import importlib
import pkgutil
import warnings
from collections.abc import Collection

from onnx.backend.test.case import node
from onnx.backend.test.case.test_case import TestCase


def node_cases(operators: Collection[str] | None = None) -> list[TestCase]:
    """Return all cases; of ``operators`` alone, without computing the others' answers.

    Their modules compute answers when they are imported. A case whose name ends with "_expanded" has the
    operators instead by which ONNX defines that of the case before; only all cases have them.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # cases divide by zero on purpose
        if operators is None:
            return list(node.collect_testcases(None))
        names = {name.lower() for name in operators} | {f"{name.lower()}op" for name in operators}
        for module in pkgutil.iter_modules(node.__path__):
            if module.name.replace("_", "") in names:
                importlib.import_module(f"{node.__name__}.{module.name}")
    return [
        case
        for case in node._NodeTestCases
        if case.model is not None
        and "_expanded" not in case.name
        and case.model.graph.node[0].op_type in operators
    ]
