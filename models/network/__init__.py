"""What a network is: operators on values, each described once (docs/explanation/operators.md)."""
