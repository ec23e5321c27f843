"""What of a model is compiled."""
