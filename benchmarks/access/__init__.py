"""What keys and TLS cost, and what their times give away."""
