"""One module per subject, run by `start` in a process of its own, under the interpreter that has the subject."""
