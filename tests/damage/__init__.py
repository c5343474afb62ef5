"""Small stores, harmed in every way that can be counted: every bit flipped, every length, every
block zero, every file gone, doubled or in another's place. What a user then sees, and is told.
"""
