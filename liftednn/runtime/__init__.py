"""What a run needs of the machine: files, memory, threads, precision, recorded GPU steps, and Ctrl-C between two steps."""
