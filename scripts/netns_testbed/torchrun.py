"""torchrun on a host of a testbed, without the traceback that may follow the last line of a successful run.

When the ranks of a host have ended, torchrun waits for the other hosts in the store on host 0 (its exit barrier). A
host that reads the store after host 0 has left logs a traceback, although all ranks have succeeded.
"""

import logging

AGENT = "torch.distributed.elastic.agent.server.api"  # whose logger has the message
EXIT_BARRIER = "Error waiting on exit barrier"


def is_shown(record: logging.LogRecord) -> bool:
    """Return whether a record is about anything but the exit barrier."""
    return not str(record.msg).startswith(EXIT_BARRIER)


if __name__ == "__main__":
    from torch.distributed.run import main

    logging.getLogger(AGENT).addFilter(is_shown)
    main()
