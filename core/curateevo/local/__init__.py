"""The loop on one machine: objects are files, jobs are subprocesses, the plans are the operator's."""
