"""What can go wrong with a read. Messages name the file and the range."""


class LoaderError(Exception):
    """The base of the errors of loader/."""


class ReadError(LoaderError):
    """The disk did not give the bytes asked for: an IO error or an early end of the file."""


class FileChangedError(ReadError):
    """The file is not the one that was opened: written to, truncated, removed or replaced."""


class FileLostError(FileChangedError):
    """The file cannot be reached any more: it, its folder or its file system is away, maybe for a moment.

    Whether it comes back, as it was or changed, is known when it is opened anew.
    """


class FileReplacedError(FileChangedError):
    """Another file has its path; the one that was opened is as it was, and can be read."""


class ChecksumError(ReadError):
    """The bytes read are not the bytes that were written."""


class ClosedError(LoaderError):
    """The reader or pool was closed by its owner; nothing is broken."""
