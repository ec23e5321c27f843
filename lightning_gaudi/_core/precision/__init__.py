"""What precision plugins of the Trainer and of Fabric stand on: autocast, scales and clipping."""
