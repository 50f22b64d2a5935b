"""What the budget refuses."""


class RefusedError(Exception):
    """A model does not fit into the budget; the message has what it needs and what is free."""
