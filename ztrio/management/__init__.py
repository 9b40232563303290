"""How an operator reaches a running server: a private Unix socket in its workspace.

    server      answers, in the server's process
    subject     what is asked about; `supervised`: a supervisor as that
    frames      what is asked and answered, one JSON object a line
    place       where the socket is, who may use it

A socket and not a signal, because an operator wants answers, and not HTTP, because nobody else is to have a way in: the
socket is 0600 in a directory of mode 0700, and the kernel says on each connection whose process is at the other end.
"""
