"""What browsers are told with pages of ours: to take nothing from elsewhere, and to be framed by nobody."""

import re
from base64 import b64encode
from hashlib import sha256

_INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)

#: With each file that a page loads, and with the page: it is what it says it is.
FILE_HEADERS = {"X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}


def page_headers(html: str) -> dict[str, str]:
    """Return the headers of the page ``html``: of scripts in it, these run and no others.

    Styles in the page are allowed: Swagger UI sets them by the hundred.
    """
    scripts = " ".join(["'self'", *map(_source, _INLINE.findall(html))])
    policy = (
        "default-src 'none'; connect-src 'self'; img-src 'self' data:; font-src 'self' data:; "
        f"script-src {scripts}; style-src 'self' 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    return {**FILE_HEADERS, "Content-Security-Policy": policy, "X-Frame-Options": "DENY"}


def _source(script: str) -> str:
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"
