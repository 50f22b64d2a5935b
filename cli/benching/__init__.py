"""What `bench` measures beside a pack that is there."""
