"""The table of codes, and faults as values."""

import grpc

from server.errors import LateError, ServiceError
from server.faults import FAILURES, Code, Fault, code_of
from tests.server.errors_table import ERRORS, LACK


def test_all_that_ends_one_request_has_a_code() -> None:
    for code, exc in ERRORS:
        assert isinstance(exc, FAILURES)
        assert code_of(exc) is code
    statuses = {status.name for status in grpc.StatusCode}
    assert {code.grpc for code in Code} <= statuses
    assert Code.CONFLICT.grpc != Code.OVER_BUDGET.grpc


def test_a_fault_is_permanent_unless_it_may_pass() -> None:
    assert Fault.of(ServiceError("why")).settled.permanent
    assert not Fault.of(LACK).settled.permanent
    assert Fault.of(LateError("why", 2.5)).retry_seconds == 2.5
    assert Fault.of(LACK).settled.cause is None
