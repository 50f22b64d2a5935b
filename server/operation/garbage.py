"""Python's collections of garbage, kept short: one that looks at everything stops all threads for 60 ms."""

import gc


def pass_over_what_stays() -> None:
    """Have collections look at nothing that there is now: libraries, schemas, the application.

    What comes afterwards is looked at: models that are loaded may go.
    """
    gc.collect()
    gc.freeze()
