"""One log record, one line: greppable, and a value with a line break in it cannot forge a second record."""

import logging


class OneLineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\r", "\\r").replace("\n", "\\n")
