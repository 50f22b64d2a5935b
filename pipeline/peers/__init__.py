"""What users would run instead, all weights in memory: each in a process of its own, as they run it.

A process of its own, because it would share heap and thread pool with ours else, which no user's does;
measured, it is as fast there. ``child`` says how each is set up and runs in the
process, ``peer`` is our end of it. No turn begins before the others sleep (``wait_until_quiet``).
"""

ONNXRUNTIME, OPENVINO = "onnxruntime-resident", "openvino-resident"
PEERS = (ONNXRUNTIME, OPENVINO)
