"""The request mill: everything that one client can do to the service, while others wait for their answers.

``good`` the clients that must be answered; ``attacks`` what is done meanwhile, each phase in a process of
its own (``attacker``); ``measuring`` what the kernel says of it; ``play`` the order of phases; ``verdict``
what must hold. Run as ``python -m benchmarks.mill``.
"""
