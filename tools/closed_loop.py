"""A closed loop of clients: each connection sends its next request when it has its answer.

    python3 closed_loop.py ADDRESS MODEL CONNECTIONS SECONDS

Inputs are as the model says, every number a half. Needs nothing but the standard library. Prints how many
requests had which status.
"""

import collections
import http.client
import json
import math
import sys
import threading
import time
import urllib.request


def body_for(address: str, model: str) -> bytes:
    """Return a request to ``model`` with all its inputs."""
    with urllib.request.urlopen(f"http://{address}/v2/models/{model}", timeout=30) as answer:
        inputs = json.load(answer)["inputs"]
    return json.dumps(
        {"inputs": [{**each, "data": [0.5] * math.prod(each["shape"])} for each in inputs]}
    ).encode()


def main() -> None:
    """Send requests for the time given."""
    address, model, connections, seconds = sys.argv[1:]
    body = body_for(address, model)
    end = time.monotonic() + float(seconds)
    statuses: collections.Counter[str] = collections.Counter()

    def send() -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        while time.monotonic() < end:
            try:
                connection.request("POST", f"/v2/models/{model}/infer", body)
                answer = connection.getresponse()
                answer.read()
                statuses[str(answer.status)] += 1
            except (OSError, http.client.HTTPException) as exc:
                connection.close()
                statuses[type(exc).__name__] += 1

    threads = [threading.Thread(target=send) for _ in range(int(connections))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdout.write(f"{model} {dict(statuses)}\n")


if __name__ == "__main__":
    main()
