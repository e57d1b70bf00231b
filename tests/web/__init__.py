"""The page, in a real browser against the real server; and how it is built."""
