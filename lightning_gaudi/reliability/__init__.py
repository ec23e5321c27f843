"""What a run promises when something fails, and the switch for each promise."""
