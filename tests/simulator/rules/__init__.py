"""Tests of the rules of the card's."""
