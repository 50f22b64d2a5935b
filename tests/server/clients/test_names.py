"""Names and versions that are none, wherever one is taken: a short error, and nothing is lost."""

import json

import pytest

from tests.examples import over
from tests.server.clients.messages import received, sent, tensor
from tests.server.support import ServiceUnderTest, error, inputs_for

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: As they are written in an address.
NAMES = {
    "a folder above": "%2e%2e",
    "a path": "a%2fb",
    "a path above": "..%2f..%2fetc",
    "a NUL": "%00",
    "a NUL behind": "tiny%00",
    "long": "n" * 300,
    "very long": "n" * 5000,
    "a space behind": "tiny%20",
    "a line behind": "tiny%0a",
    "another case": "Tiny",
    "a Cyrillic letter": "t%D1%96ny",
    "a wide letter": "%EF%BD%94iny",
    "a combining mark": "tiny%CC%81",
    "no UTF-8": "%ff%fe",
    "quotes": "'%22%3Cscript%3E",
}
VERSIONS = ["0", "2", "01", "-1", "latest", "1.0", "9" * 300, "1%00", "%EF%BC%91", "%20", "..%2f1"]
GETS = ["", "/ready", "/config", "/stats"]
BODY = sent([tensor("image", inputs_for("tiny")["image"])])


async def refused(service: ServiceUnderTest, method: str, path: str, statuses: set[int]) -> None:
    options = BODY if path.endswith("/infer") else {}
    answer = await service.client.request(method, path, **options)
    assert answer.status_code in statuses, (path, answer.text)
    assert len(error(answer, answer.status_code)) < 200
    assert "\n" not in answer.json()["error"]


@pytest.mark.parametrize("what", NAMES)
async def test_names_of_no_model(shared: ServiceUnderTest, what: str) -> None:
    name = NAMES[what]
    for end in (*GETS, "/trace/setting"):
        await refused(shared, "GET", f"/v2/models/{name}{end}", {404})
    await refused(shared, "POST", f"/v2/models/{name}/infer", {404})
    for verb in ("load", "unload"):
        await refused(shared, "POST", f"/v2/repository/models/{name}/{verb}", {404})
    received(await shared.client.post("/v2/models/tiny/infer", **BODY))


@over("version", VERSIONS)
async def test_versions_that_are_none(shared: ServiceUnderTest, version: str) -> None:
    for end in GETS:
        await refused(shared, "GET", f"/v2/models/tiny/versions/{version}{end}", {404})
    await refused(shared, "POST", f"/v2/models/tiny/versions/{version}/infer", {404})
    received(await shared.client.post("/v2/models/tiny/versions/1/infer", **BODY))


@over("query", ["unknown=1", "a=1&a=2", "=", "%00=%ff", "q=" + "n" * 3000])
async def test_query_parameters_that_nobody_knows_are_ignored(
    shared: ServiceUnderTest, query: str
) -> None:
    """As Triton ignores them: its clients may send any (``query_params``)."""
    received(await shared.client.post(f"/v2/models/tiny/infer?{query}", **BODY))
    for path in ("/v2", "/v2/models/tiny", "/v2/models/tiny/config", "/v2/models/stats"):
        assert (await shared.client.get(f"{path}?{query}")).status_code == 200


@over("coding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig"])
async def test_json_before_raw_tensors_is_utf_8(shared: ServiceUnderTest, coding: str) -> None:
    length = int(BODY["headers"]["Inference-Header-Content-Length"])
    text = BODY["content"][:length].decode().encode(coding)
    answer = await shared.client.post(
        "/v2/models/tiny/infer",
        content=text + BODY["content"][length:],
        headers={"Inference-Header-Content-Length": str(len(text))},
    )
    error(answer, 400, "UTF")


@over("kind", [None, "", "application/json", "text/plain", "x" * 500])
async def test_any_content_type_will_do(shared: ServiceUnderTest, kind: str | None) -> None:
    headers = {**BODY["headers"], **({} if kind is None else {"Content-Type": kind})}
    content = BODY["content"]
    received(await shared.client.post("/v2/models/tiny/infer", content=content, headers=headers))


@over("shape", [["1", "3", "16", "16"], "1,3,16,16", [1, [3], 16, 16], None, [True]])
async def test_shapes_that_are_none(shared: ServiceUnderTest, shape: object) -> None:
    document = {
        "inputs": [
            {
                "name": "image",
                "datatype": "FP32",
                "shape": shape,
                "parameters": {"binary_data_size": 3072},
            }
        ]
    }
    text = json.dumps(document).encode()
    answer = await shared.client.post(
        "/v2/models/tiny/infer",
        content=text + bytes(3072),
        headers={"Inference-Header-Content-Length": str(len(text))},
    )
    error(answer, 400, "shape")
