"""A process that takes memory and gives it back: a number of bytes a line on standard input.

Each line is answered by one when it holds so much, and has touched all of it.
"""

import mmap
import sys


def main() -> None:
    """Hold as much as the last line says."""
    held: list[mmap.mmap] = []
    for line in sys.stdin:
        wanted, step = int(line), 1 << 20
        while len(held) * step < wanted:
            block = mmap.mmap(-1, step)
            for offset in range(0, step, mmap.PAGESIZE):
                block[offset] = 1
            held.append(block)
        while held and (len(held) - 1) * step >= wanted:
            held.pop().close()
        print(len(held) * step, flush=True)


if __name__ == "__main__":
    main()
