"""What a network is: operators of known families on values, each described once (docs/network.md)."""
