"""What tools and recipes show people: pages of HTML that need nothing else, and plots in them.

`html` fills templates, `svg` draws bars.
"""
