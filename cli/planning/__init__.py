"""What ``layerstream plan`` does beside plans: deadlines, the frontier, pictures."""
