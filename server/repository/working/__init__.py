"""What a worker works on: requests and changes, and the sweeps that run."""
