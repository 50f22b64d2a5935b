"""VP8L, the lossless kind of WebP: how many groups of Huffman codes its pixels have.

A decoder builds tables for each group before it decodes a pixel, 6 to 20 KB, and a group takes three bytes
of the file. Bit stream: RFC 9649, section 3; what a decoder holds: libwebp's vp8l_dec.c.
"""

from collections.abc import Sequence

from models.images.containers.source import ContainerError, Countdown

SIGNATURE = 0x2F
_SIZE_BITS = 14
_PREDICTOR, _CROSS_COLOUR, _SUBTRACT_GREEN, _INDEXING = range(4)
_LITERALS, _LENGTHS, _DISTANCES = 256, 24, 40
_MAX_CACHE_BITS = 11
_LENGTH_ORDER = (17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
# Symbols that repeat a length: bits of how often, and the least number.
_REPEATS = {16: (2, 3), 17: (3, 3), 18: (7, 11)}
_MAX_CODE_BITS = 15
_DEFAULT_LENGTH = 8
# Symbols that are read here, in Python; a picture of 12 megapixels has about 50,000.
_MAX_SYMBOLS = 1 << 18
# Of each group: its tables (of codes in 8 bits, and the rest), what is packed of them, and the pointers.
_TABLE_ENTRIES = 630 + 3 * 630 + 410
_GROUP_BYTES = 4 * _TABLE_ENTRIES + 1024
_ENTRY_BYTES = 4
_GROUPS = 1 << 16
_INDEX_BYTES = 4 * _GROUPS


class _Bits:
    """Bits of ``data``, from the lowest of each byte on."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._next = 0
        self._window, self._count = 0, 0

    def _fill(self) -> None:
        chunk = self._data[self._next : self._next + 8]
        self._next += 8
        if self._next > len(self._data) + 16:
            raise ContainerError("the WebP is truncated")
        self._window |= int.from_bytes(chunk, "little") << self._count
        self._count += 64

    def peek(self) -> int:
        """Return at least as many bits as the longest code has; zeros behind the end."""
        if self._count < _MAX_CODE_BITS:
            self._fill()
        return self._window

    def skip(self, count: int) -> None:
        self._window >>= count
        self._count -= count

    def take(self, count: int) -> int:
        """Return the next ``count`` bits, up to 32."""
        if self._count < count:
            self._fill()
        value = self._window & ((1 << count) - 1)
        self.skip(count)
        return value


class _Code:
    """A Huffman code, of the bits that each symbol has; one of one symbol has none."""

    def __init__(self, lengths: Sequence[int]) -> None:
        used = [(length, symbol) for symbol, length in enumerate(lengths) if length]
        if not used:
            raise ContainerError("a code without symbols in the WebP")
        self._only = used[0][1] if len(used) == 1 else None
        self._symbols: dict[tuple[int, int], int] = {}
        code, before = 0, 0
        for length, symbol in sorted(used):
            code <<= length - before
            before = length
            self._symbols[length, _reversed(code, length)] = symbol
            code += 1
        if self._only is None and code != 1 << before:
            raise ContainerError("a damaged code in the WebP")
        self._lengths = sorted({length for length, _ in used})

    def read(self, bits: _Bits) -> int:
        """Return the next symbol."""
        if self._only is not None:
            return self._only
        window = bits.peek()
        for length in self._lengths:
            symbol = self._symbols.get((length, window & ((1 << length) - 1)))
            if symbol is not None:
                bits.skip(length)
                return symbol
        raise ContainerError("a damaged code in the WebP")


def _reversed(code: int, length: int) -> int:
    return int(f"{code:0{length}b}"[::-1], 2)


def group_bytes(data: bytes, max_symbols: int = _MAX_SYMBOLS) -> int:
    """Return what the tables of all groups of codes take, of the bit stream ``data``.

    Raises:
        ContainerError: it is damaged, or needs too many steps to read.
    """
    bits = _Bits(data)
    if bits.take(8) != SIGNATURE:
        raise ContainerError("a damaged WebP")
    width, height = bits.take(_SIZE_BITS) + 1, bits.take(_SIZE_BITS) + 1
    if bits.take(4) >> 1:
        raise ContainerError("a lossless WebP of another version")
    symbols = Countdown("codes before the pixels of the WebP", max_symbols)
    width = _skip_transforms(bits, width, height, symbols)
    cache_bits = _cache_bits(bits)
    n_groups = 1
    if bits.take(1):
        size = _blocks(bits, width, height)
        groups = _read_pixels(bits, size, symbols)
        n_groups = groups.rfind(1) + 1
        if n_groups > min(1000, width * height):  # then a decoder has tables of those that are used
            n_groups = groups.count(1)
    entries = _ENTRY_BYTES << cache_bits if cache_bits else 0
    return n_groups * (_GROUP_BYTES + entries) + (_INDEX_BYTES if n_groups > 1 else 0)


def _blocks(bits: _Bits, width: int, height: int) -> int:
    """Return how many blocks the picture has, of a size that comes next."""
    precision = bits.take(3) + 2
    return (((width - 1) >> precision) + 1) * (((height - 1) >> precision) + 1)


def _skip_transforms(bits: _Bits, width: int, height: int, symbols: Countdown) -> int:
    """Read past what becomes of pixels when they are decoded; return the width that is decoded."""
    visited = set[int]()
    while bits.take(1):
        kind = bits.take(2)
        if kind in visited:
            raise ContainerError("a damaged WebP")
        visited.add(kind)
        if kind in (_PREDICTOR, _CROSS_COLOUR):
            _read_pixels(bits, _blocks(bits, width, height), symbols)
        elif kind == _INDEXING:
            n_colours = bits.take(8) + 1
            _read_pixels(bits, n_colours, symbols)
            packing = 0 if n_colours > 16 else 1 if n_colours > 4 else 2 if n_colours > 2 else 3
            width = ((width - 1) >> packing) + 1
    return width


def _cache_bits(bits: _Bits) -> int:
    """Return the bits of the colour cache, 0 for none."""
    if not bits.take(1):
        return 0
    count = bits.take(4)
    if not 1 <= count <= _MAX_CACHE_BITS:
        raise ContainerError("a damaged WebP")
    return count


def _read_pixels(bits: _Bits, count: int, symbols: Countdown) -> bytearray:
    """Read ``count`` pixels; return a 1 for each number of a group among them (red and green as one).

    What is copied, from pixels before or from the cache, is no new number.
    """
    cache_bits = _cache_bits(bits)
    n_green = _LITERALS + _LENGTHS + (1 << cache_bits if cache_bits else 0)
    sizes = (n_green, _LITERALS, _LITERALS, _LITERALS, _DISTANCES)
    green, red, blue, alpha, distance = [_read_code(bits, size) for size in sizes]
    used_groups, done = bytearray(_GROUPS), 0
    while done < count:
        symbols.step()
        symbol = green.read(bits)
        if symbol < _LITERALS:
            used_groups[red.read(bits) << 8 | symbol] = 1
            blue.read(bits)
            alpha.read(bits)
            done += 1
        elif symbol < _LITERALS + _LENGTHS:
            done += _prefixed(bits, symbol - _LITERALS)
            _prefixed(bits, distance.read(bits))
        else:
            done += 1
    if 1 not in used_groups:
        raise ContainerError("a damaged WebP")
    return used_groups


def _prefixed(bits: _Bits, symbol: int) -> int:
    """Return the length or distance that begins with ``symbol``."""
    if symbol < 4:
        return symbol + 1
    extra = (symbol - 2) >> 1
    return ((2 + (symbol & 1)) << extra) + bits.take(extra) + 1


def _read_code(bits: _Bits, n_symbols: int) -> _Code:
    """Return the code that is described next, of up to ``n_symbols`` symbols."""
    lengths = [0] * n_symbols
    if bits.take(1):
        is_two = bits.take(1)
        symbols = [bits.take(8 if bits.take(1) else 1)]
        if is_two:
            symbols.append(bits.take(8))
        for symbol in symbols:
            if symbol >= n_symbols:
                raise ContainerError("a damaged code in the WebP")
            lengths[symbol] = 1
        return _Code(lengths)
    of_lengths = [0] * len(_LENGTH_ORDER)
    for index in _LENGTH_ORDER[: bits.take(4) + 4]:
        of_lengths[index] = bits.take(3)
    _read_lengths(bits, _Code(of_lengths), lengths)
    return _Code(lengths)


def _read_lengths(bits: _Bits, code: _Code, lengths: list[int]) -> None:
    """Read how many bits the symbols of another code have, written in ``code``."""
    remaining = len(lengths)
    if bits.take(1):
        remaining = 2 + bits.take(2 + 2 * bits.take(3))
    position, before = 0, _DEFAULT_LENGTH
    while position < len(lengths) and remaining:
        remaining -= 1
        symbol = code.read(bits)
        if symbol not in _REPEATS:
            lengths[position] = symbol
            position += 1
            before = symbol or before
            continue
        extra, min_count = _REPEATS[symbol]
        count = bits.take(extra) + min_count
        if position + count > len(lengths):
            raise ContainerError("a damaged code in the WebP")
        if symbol == 16:
            lengths[position : position + count] = [before] * count
        position += count
