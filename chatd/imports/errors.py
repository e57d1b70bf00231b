"""What is wrong with a file of conversations."""

from chatd.errors import SetupError


class WrongFile(SetupError):
    """A file of conversations is malformed, or of a kind nobody knows. Nothing of it was stored."""

    code = "wrong_file"
