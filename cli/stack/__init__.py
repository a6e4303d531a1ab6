"""The local stack: every server that Longbatch needs, started from wheels and kept alive."""
