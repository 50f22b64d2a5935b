"""Extensions of the protocol beside inference, as Triton has them: configuration, statistics, parameters.

What is not served (traces, log levels, shared memory) says so in the way in which its clients ask.
"""
