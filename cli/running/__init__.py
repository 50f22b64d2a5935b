"""What ``layerstream run`` does with the answers of a model, once or many times."""
