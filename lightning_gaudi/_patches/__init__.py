"""What is changed in other people's packages while they run: Lightning, torch, DeepSpeed."""
