"""The text form of the graph IR: `parse(print(module))` equals `module`.

Owns printing, tokens and parsing. Must not check more than what the text needs to be read.
"""
