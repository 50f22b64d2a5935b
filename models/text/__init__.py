"""Texts as inputs of networks: the recipe, tokenizers that make token ids, vectors made of the answer."""
