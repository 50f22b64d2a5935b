"""Which models on which nodes: by what their plans need, and what is asked of them."""
