"""What a card's memory is for: `owners` tells, with the `tags` of the rest; `report` says it."""
