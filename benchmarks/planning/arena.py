"""Arenas of packs: what lives at once, beside what the arrangement of all values takes, and its time.

Run as ``python -m benchmarks.planning.arena PACK...``
"""

import argparse
import time
from pathlib import Path

from models.packs.pack import open_pack
from pipeline.planning.arena import most_alive, plan_arena
from pipeline.program.lives import lifetimes
from pipeline.program.program import Program


def main() -> None:
    """Print a line for each pack, whose layers stay whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packs", nargs="+", type=Path)
    print(f"{'pack':28} {'values':>7} {'at once':>12} {'arena':>9} {'seconds':>8}")
    for path in parser.parse_args().packs:
        lives = lifetimes(Program.as_compiled(open_pack(path)))
        start = time.perf_counter()
        n_bytes, least = plan_arena(lives).n_bytes, most_alive(lives)
        took = time.perf_counter() - start
        count = sum(life.takes_room for life in lives)
        ratio = f"{n_bytes / max(1, least):.3f} x"
        print(f"{path.name[:28]:28} {count:>7} {least:>12} {ratio:>9} {took:>8.4f}", flush=True)


if __name__ == "__main__":
    main()
