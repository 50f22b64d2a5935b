"""Named arrays to the body of an answer, in pieces: JSON, and behind it the tensors that are wanted raw."""

from collections.abc import Iterator

from server.codec.messages import ModelAnswer
from server.codec.raw.writer import raw_bytes, raw_pieces
from server.codec.text.writer import check_finite, write_text


class Body:
    """The body of ``answer``; both parts can be made again.

    ``is_mixed``: there are raw tensors, of ``raw_bytes``, so the length of the JSON must be said.

    Raises:
        NotFiniteError: an output that is wanted as JSON has NaN or infinite values.
    """

    def __init__(self, answer: ModelAnswer) -> None:
        self._answer = answer
        self._raw_sizes: dict[str, int] = {}
        for output in answer.outputs:
            if output.is_binary:
                self._raw_sizes[output.name] = raw_bytes(output.array)
            else:
                check_finite(output)
        self.is_mixed = bool(self._raw_sizes)
        self.raw_bytes = sum(self._raw_sizes.values())

    def text(self) -> Iterator[bytes]:
        """Return the pieces of the JSON, each made in about a millisecond."""
        return write_text(self._answer, self._raw_sizes)

    def raw(self) -> Iterator[bytes]:
        """Yield the pieces of the raw tensors."""
        for output in self._answer.outputs:
            if output.is_binary:
                yield from raw_pieces(output.array)
