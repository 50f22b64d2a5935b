"""Infer requests and answers of the Open Inference Protocol, version 2; free of IO.

What headers say (framing.py) and the chunks of a body become named arrays, and named arrays the pieces of
an answer (infer_bodies.py). Between the two lie the plain records of messages.py, which know neither JSON
nor HTTP, and what a request may say, for JSON and gRPC; JSON is read and written in text/, raw tensors in
raw.py.
"""
