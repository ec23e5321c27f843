"""What a program will take of a card, measured before there is one."""
