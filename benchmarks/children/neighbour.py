"""A process that takes memory and gives it back: a number of bytes a line on standard input.

Each line is answered by one when it holds so much, and has touched all of it.
"""

import mmap
import sys


def main() -> None:
    """Hold as much as the last line says."""
    blocks: list[mmap.mmap] = []
    for line in sys.stdin:
        n_bytes, step = int(line), 1 << 20
        while len(blocks) * step < n_bytes:
            block = mmap.mmap(-1, step)
            for offset in range(0, step, mmap.PAGESIZE):
                block[offset] = 1
            blocks.append(block)
        while blocks and (len(blocks) - 1) * step >= n_bytes:
            blocks.pop().close()
        print(len(blocks) * step, flush=True)


if __name__ == "__main__":
    main()
