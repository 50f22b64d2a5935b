"""Files of the page refer to each other, and to no other host; no code and no style is inline."""

import re

from server.page.routes import STATIC

FILES = {path.name: path.read_text() for path in STATIC.iterdir()}


def test_files_refer_to_files_that_are_there_and_to_no_other_host() -> None:
    for name, text in FILES.items():
        hosts = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert hosts <= {"http://www.w3.org/2000/svg"}, name
        modules = set(re.findall(r"from \"\./([^\"]+)\"", text))
        assert modules | set(re.findall(r"page/files/([\w.]+)", text)) <= FILES.keys(), name


def test_nothing_that_the_policy_of_the_page_forbids() -> None:
    inline = re.compile(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(| style=| on\w+=\"|<style")
    for name, text in FILES.items():
        assert not inline.search(text), name
