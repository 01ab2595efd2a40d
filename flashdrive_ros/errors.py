"""Errors whose message is meant for the person at the terminal: shown without a traceback."""


class UserError(Exception):
    """Something that the user can put right; the message names it."""
